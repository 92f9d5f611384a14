"""Rewards that listen: hand-weighted features, models trained on pairs of clips, and an intelligibility guard.

Read settings.py, then clips.py (decoding and features, shared by all terms); feature_model.py and speech_encoder.py are
the models, a term is built by `build` of the module with its name.
"""
