"""Language model of codec tokens (`model=codec`) and its decoder.

Read codec_lm.py, then delay_pattern.py (which words may follow) and decoder.py. tokenizer.py and start.py make a new
policy; family.py tells the core about the architecture.
"""
