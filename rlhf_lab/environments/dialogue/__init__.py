"""Dialogue world: prompts for an assistant, candidate responses, and their gold reward.

Read content.py and phrases.py (texts), knowledge.py (facts), prompts.py, lexicon.py (sentence → meaning), gold.py,
criteria.py (grades), truth.py (harm and honesty), faults.py (faults of a response and their correction), responses.py
(candidates), and world.py, which implements the `Oracle` protocol with all of them.
"""
