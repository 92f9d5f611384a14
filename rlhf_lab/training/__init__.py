"""How a stage trains: the loop, its batches, optimisers and checkpoints; `sharding/` divides it between processes.

Read run.py (what a stage gets to work with), start.py (its policy and reference), loop.py (the one loop of every
algorithm), checkpoint.py (exact resume). An algorithm has to know `Algorithm` in loop.py and nothing else of this.
"""
