"""Named criteria of a response that a program computes without the true reward, and rewards built from them.

Read sets.py (the criteria of each domain), model.py (their weighted sum), then design.py, the term.
"""
