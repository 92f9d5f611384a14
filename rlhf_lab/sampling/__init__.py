"""Sampling of responses and episodes from a policy.

Read episodes.py (the one way to collect episodes) and local.py (the built-in sampler: groups of responses per prompt,
exact log-probabilities). decoding.py schedules the rows, decoder.py and cache.py compute the next token, drawing.py
samples it, turns.py decides which rows continue. experience.py turns episodes into training data; policy_responses.py
and solutions.py sample what reward models train on. vllm/ samples with vLLM.
"""
