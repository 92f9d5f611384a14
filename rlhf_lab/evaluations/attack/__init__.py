"""`attack`: search for responses that a reward prefers, before any training.

exploits.py has fixed exploits (padding, flattery, …), search.py edits responses, attack.py is the stage, and card.py
writes its files. Read search.py first.
"""
