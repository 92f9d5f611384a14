"""MT-Bench (arXiv:2306.05685): a policy answers questions of two turns, and a judge grades each turn from 1 to 10.

Read questions.py, then mt_bench.py; settings.py has the settings of the stage.
"""
