"""The review world: short changes of code with planted defects, and comments on them whose truth is known.

Reading path: changes.py (code and its defects) → comments.py (sentences) → gold.py → candidates.py → world.py.
"""
