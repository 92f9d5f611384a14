"""`engine=trl`: recipes run by TRL's own trainers. `options.py` and `tables.py` import neither torch nor TRL."""
