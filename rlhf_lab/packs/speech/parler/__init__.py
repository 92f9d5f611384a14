"""Codec language models in a worker process: rlhf_lab's own, and Parler-TTS, which needs an old transformers.

Start with client.py, the side of rlhf_lab. It wraps the worker in an object that samples clips, computes differentiable
log-probabilities and takes optimizer steps. protocol.py defines the messages. worker.py, serving.py and served_model.py
run in the worker process. Both models derive from `ServedModel`: model.py is Parler-TTS, and codec_model.py is
rlhf_lab's. columns.py implements the delay pattern and needs only torch. environment.py creates the environment of
Parler-TTS, settings.py has `model=parler`, rounds.py runs DPO on a reward of the decoded audio, progress.py keeps a
model per finished round, and command.py is the sub-command. docs/speech/parler.md shows how to use it.
"""
