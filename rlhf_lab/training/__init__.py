"""Training of a stage: the loop, its batches, optimisers and checkpoints.

Read run.py (what a stage works with), start.py (its policy and reference), loop.py (the loop of all algorithms) and
checkpoint.py (exact resume). batching.py, optim.py and totals.py are parts of the loop. An algorithm only needs
`Algorithm` in loop.py. sharding/ splits a step between processes.
"""
