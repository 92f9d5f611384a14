"""Training on preference pairs: one pass over a corpus, or rounds on the policy's own replies.

Read settings.py, dpo.py (one pass), then rounds.py and dpo_iterative.py. The losses are in losses/preference.py.
"""
