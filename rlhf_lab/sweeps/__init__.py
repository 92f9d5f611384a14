"""Jobs of a study: started by a Hydra launcher, collected in one table.

Read sweep.py (runs them); search.py searches over settings, with values from optuna_trials.py; submitted.py waits for
jobs under Slurm; wandb_file.py writes a study for W&B's sweep agents.
"""
