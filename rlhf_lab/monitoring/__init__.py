"""Watching a run for reward hacking and for silence.

Read detector.py (batches of samples in, alarms out), hacking.py (its statistics), monitor.py (live), replay.py (a
saved trace), gold_fall.py (has the true reward fallen), silence.py (a stage that completed and learned nothing).
"""
