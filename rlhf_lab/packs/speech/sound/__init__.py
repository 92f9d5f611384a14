"""Speech as signals: audio files, acoustic features, a renderer, a codec, and the text form of a codec's tokens.

Read stream.py (how a clip is written as a reply). Knows arrays only: no model, no data set, no reward. What people in
the embedded world say, and how natural it is, stands in `packs/speech/world/`.
"""
