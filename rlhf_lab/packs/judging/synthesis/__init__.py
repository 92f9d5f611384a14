"""Stages that make training data with a language model: pairs, demonstrations, prompts. They train nothing.

Read settings.py, constitution.py (what replies are judged by), making.py (what all three share: prompts, screening,
the corpus they write), then cai_preferences.py, synthetic_sft.py and self_instruct.py. What they wrote is read by
data/made.py and mixed by data/mixture.py.
"""
