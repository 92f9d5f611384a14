"""Training on preference pairs: one pass over a corpus, or rounds on responses of the policy itself.

Read settings.py and dpo.py (one pass), then dpo_iterative.py (rounds). step_pairs.py makes pairs of steps. The losses
are in losses/preference.py.
"""
