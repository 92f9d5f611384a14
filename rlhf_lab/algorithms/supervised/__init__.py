"""Supervised fine-tuning on demonstrations.

Read settings.py, then sft.py.
"""
