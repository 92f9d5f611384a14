"""Reward models of speech, trained on pairs of clips, and the recogniser of the intelligibility guard.

Read settings.py, acoustic_reward.py with pair_training.py (the loop) and validation.py (features against the truth);
recogniser.py.
"""
