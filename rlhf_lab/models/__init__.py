"""Models, tokenizers and log-probabilities.

Read encoding.py (text ↔ token rows), logprobs.py (the one log-probability function) and build.py (load and save).
shared_prompt.py and packing.py avoid computing padding and repeated prompts, lora.py, weights.py and one_base.py are
adapters and quantised weights, sharded.py and by_block.py handle models that are sharded between processes.
families.py has the architectures that packs add.
"""
