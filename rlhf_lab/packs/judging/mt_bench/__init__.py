"""MT-Bench (arXiv:2306.05685): a policy answers questions of two turns, and a judge grades each turn from 1 to 10.

Read settings.py, then mt_bench.py.
"""
