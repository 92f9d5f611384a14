"""Stages that write training data with a language model: pairs, demonstrations, prompts. They train nothing.

Read settings.py, constitution.py (the principles, which are in constitutions/) and making.py (common to the stages:
prompts, screening, the corpus they write), then cai_preferences.py, synthetic_sft.py and self_instruct.py.
data/generated.py reads what they wrote, data/mixture.py mixes it with other data.
"""
