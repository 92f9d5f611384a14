"""Trackers of metrics in addition to the run directory: Weights & Biases, Trackio, TensorBoard.

Read tracker.py (the protocol) and tracking.py, which calls trackers so that a failing one never stops a run. Each
tracker has a module. panels.py lists the panels of the W&B dashboard, and dashboard.py makes a workspace of them.
"""
