"""Strategies for a training step on one or several processes: none, DDP, FSDP2, DeepSpeed ZeRO.

Read engine.py (the interface that the loop calls, one process and DDP) and settings.py (what each strategy shards),
then fsdp.py or zero.py.
"""
