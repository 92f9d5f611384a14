"""Where metrics go besides the run directory: Weights & Biases, Trackio, TensorBoard.

tracker.py is the protocol, tracking.py calls it and never lets it break a run; one file per tracker.
"""
