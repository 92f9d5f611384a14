"""Stages that train reward models on pairs of clips, fit the recogniser, or rank clips of a policy.

Read settings.py first. acoustic_reward.py and wav2vec2_reward.py train reward models, with clip_pairs.py (pairs and
their validation) and pair_training.py; recogniser.py and tts_preferences.py are the other stages.
"""
