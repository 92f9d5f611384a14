"""Review world: short code changes with planted defects, and comments on them with known ground truth.

Read changes.py (code and its defects), comments.py (sentences), gold.py, candidates.py, world.py.
"""
