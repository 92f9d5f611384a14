"""Speech: a renderer, a codec and its policies, acoustic rewards, Parler-TTS.

Begin with world/speech.py; then policy/codec_lm.py, rewards/acoustic.py.
"""
