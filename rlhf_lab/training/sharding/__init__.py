"""Strategies for a training step on one or several processes: none, DDP, FSDP2, DeepSpeed ZeRO.

Read settings.py (what each strategy shards), then engine.py (one process, DDP and FSDP2) and zero.py (DeepSpeed).
"""
