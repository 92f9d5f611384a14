"""Worked solutions from any source: final answers, expressions, and the chain of steps between them.

Read answers.py (definition of the final answer), chains.py (steps) and expressions.py (safe evaluation).
"""
