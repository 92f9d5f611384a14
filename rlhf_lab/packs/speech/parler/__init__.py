"""Codec language models in a worker process: rlhf_lab's own, and Parler-TTS, which needs an old transformers.

Start with client.py, the side of rlhf_lab; protocol.py defines the messages. worker.py and served_model.py run in the
worker process, with model.py (Parler-TTS) or codec_model.py (rlhf_lab's own), and columns.py is their delay pattern.
rounds.py runs DPO on a reward of the decoded audio. docs/speech/parler.md shows how to use it.
"""
