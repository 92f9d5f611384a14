"""The same recipes through TRL's trainers (`engine=trl`).

Read options.py (which settings carry over), tables.py (the argument of TRL for each of them) and engine.py, which
builds and runs a trainer on our token rows and rewards. trainers.py has TRL's classes and the callback for our logs.
"""
