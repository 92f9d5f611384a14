"""Language models of a codec's streams, and their decoder.

Read codec_lm.py, then delay_pattern.py and decoder.py.
"""
