"""How a step is computed by one process or several: none, DDP, FSDP2, DeepSpeed ZeRO.

engine.py is what the loop talks to; one file per strategy; settings.py says what each divides.
"""
