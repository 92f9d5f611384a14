"""Numbers with their uncertainty: arrays in, values out.

Read estimates.py (an estimate and its interval) and inference.py (intervals, tests, families of claims) with
resampling.py. Each other module answers one question, such as calibration.py, best_of_n.py, overoptimization.py or
paired_rates.py. Statistics of judges are in the pack judging.
"""
