"""The speech world: made-up utterances, how people say them well and badly, and how natural a clip is.

In reading order: phones.py, prompts.py (what is asked for), delivery.py (how it is said), recogniser.py, gold.py
(what it is worth), world.py.
"""
