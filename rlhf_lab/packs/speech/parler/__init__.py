"""Parler-TTS in a worker process with a pinned environment, because it needs another version of transformers.

Start with client.py, the side of rlhf_lab. It wraps the worker in an object that samples clips, computes differentiable
log-probabilities and takes optimizer steps. protocol.py defines the messages. worker.py, serving.py and model.py run
in the worker process. columns.py implements the delay pattern and needs only torch. environment.py creates the
environment, rounds.py runs DPO on a reward of the decoded audio, progress.py keeps a model per finished round, and
command.py is the sub-command.
docs/speech/parler.md shows how to use it.
"""
