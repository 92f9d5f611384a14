"""Language model of codec tokens (`model=codec`) and its decoder.

Read codec_lm.py, then decoder.py. start.py makes a new policy; family.py tells the core about the architecture.
"""
