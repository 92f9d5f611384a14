"""Strategies for a training step on one or several processes: none, DDP, FSDP2, DeepSpeed ZeRO.

Read engine.py (the interface that the loop calls) and settings.py (what each strategy shards), then none.py, ddp.py,
fsdp.py or zero.py.
"""
