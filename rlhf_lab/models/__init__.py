"""Models, tokenizers and log-probabilities.

Read encoding.py (text ↔ token rows), logprobs.py (the one log-probability function), build.py (load and save). The
rest is what those need: adapters, shared prompts, models divided between processes.
"""
