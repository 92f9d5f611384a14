"""Worked solutions of any source: final answers, expressions, and the chain of steps between them.

answers.py decides what counts as the final answer; chains.py reads steps; expressions.py evaluates them safely.
"""
