"""The same recipes through TRL's trainers (`engine=trl`).

options.py says what carries over, tables.py lists it; engine.py builds and runs a trainer.
"""
