"""Dialogue world: prompts for an assistant, candidate responses, and their gold reward.

Read domain.py, content.py and phrases.py (texts), knowledge.py (facts), prompts.py, lexicon.py (sentence → meaning),
gold.py, criteria.py (grades), harm.py, faults.py (faults of a response and their correction), responses.py
(candidates), and world.py, which implements the `Oracle` protocol with all of them.
"""
