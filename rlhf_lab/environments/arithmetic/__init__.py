"""The arithmetic world: running totals as word problems, with solutions that may slip.

In reading order: problems.py, solutions.py, perturbation.py (planted mistakes), world.py.
"""
