"""Detection of reward hacking, and of runs that complete without learning.

Read detector.py (batches of samples in, alarms out), hacking.py (its statistics), monitor.py (live runs) and replay.py
(saved traces). audit.py compares the policy with the start policy during training. gold_fall.py asks whether the true
reward has fallen, silence.py whether a completed stage learned anything, alerts.py sends alarms to people.
"""
