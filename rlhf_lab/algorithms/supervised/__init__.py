"""Supervised fine-tuning on demonstrations, and in rounds on accepted samples of the policy itself.

Read settings.py, then sft.py. Self-training is in self_training_settings.py and self_training.py.
"""
