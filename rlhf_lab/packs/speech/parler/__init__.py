"""Parler-TTS, which needs a transformers of its own: an environment beside the lab's, and a process that runs in it.

environment.py makes the environment. client.py is the lab's side: a worker process as an object that samples clips,
gives log-probabilities that losses differentiate through, and steps. protocol.py is what the two say to each other.
worker.py, serving.py and model.py run in the process; columns.py, which needs torch alone, is the arithmetic of the
delay pattern. rounds.py has rounds of DPO on a reward of the decoded audio. docs/speech/parler.md shows them.
"""
