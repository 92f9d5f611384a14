"""The arithmetic world: word problems about a running total, with solutions that may contain a mistake.

Read problems.py, solutions.py, perturbation.py (planted mistakes), world.py.
"""
