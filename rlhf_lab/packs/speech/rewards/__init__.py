"""Reward terms on audio: hand-weighted features, models trained on pairs of clips, intelligibility.

Read settings.py and clips.py (decoding and features, shared by all terms), then the terms.
"""
