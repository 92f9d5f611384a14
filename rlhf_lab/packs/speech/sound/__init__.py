"""Signal processing of speech, on arrays: audio files, acoustic features, a renderer, a codec, recognition of phones.

Start with stream.py (how a clip is written as a response), codec.py and renderer.py, then audio.py and features.py.
"""
