"""Supervised fine-tuning.

settings.py, sft.py.
"""
