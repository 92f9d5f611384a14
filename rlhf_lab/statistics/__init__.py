"""Numbers with their uncertainty: arrays in, values out.

Read estimates.py (what an estimate is), then inference.py (intervals, tests, families of claims). The others answer
one question each: calibration, association, choice, best-of-n, over-optimisation, scores of benchmarks; ranking,
win rates, agreement, biases of a judge and its correction by people.
"""
