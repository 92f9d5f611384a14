"""The same recipes through TRL's trainers (`engine=trl`).

Read options.py (which settings carry over), tables.py (the argument of TRL for each of them, in the vocabulary of
translation.py) and engine.py (builds and runs a trainer). trainers.py, rows.py, reward.py and callback.py connect the
trainer to our batches, token rows, rewards and logs.
"""
