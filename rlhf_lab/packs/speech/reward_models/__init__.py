"""Stages that train reward models on pairs of clips, and the recogniser for `reward=intelligibility`.

Read settings.py first. acoustic_reward.py trains on features and uses clip_pairs.py (the pairs), pair_training.py (the
loop) and validation.py (correlation of features with the true naturalness). wav2vec2_reward.py trains on the waveform,
and recogniser.py fits the recogniser.
"""
