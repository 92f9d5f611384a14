"""Reward terms on audio: hand-weighted features, models trained on pairs of clips, intelligibility.

Read settings.py and clips.py (decoding and features, shared by all terms), then the terms acoustic.py,
acoustic_rm.py, wav2vec2.py and intelligibility.py. feature_model.py and speech_encoder.py contain the models.
criteria.py provides the features as criteria of reward designs.
"""
