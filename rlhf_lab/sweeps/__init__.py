"""The jobs of a study: started by a Hydra launcher, ended in one table.

sweep.py runs them; submitted.py waits for jobs that Slurm has.
"""
