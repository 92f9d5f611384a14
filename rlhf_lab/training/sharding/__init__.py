"""How one process or several compute a training step: none, DDP, FSDP2, DeepSpeed ZeRO.

engine.py is what the loop talks to; one file per strategy; settings.py says what each divides.
"""
