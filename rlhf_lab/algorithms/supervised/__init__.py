"""Supervised fine-tuning on demonstrations, and in rounds on accepted samples of the policy itself.

Read settings.py, then sft.py and self_training.py.
"""
