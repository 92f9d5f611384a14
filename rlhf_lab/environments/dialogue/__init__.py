"""The dialogue world: assistant prompts, candidate replies, and what they are truly worth.

In reading order: domain.py, content.py, phrases.py (texts), knowledge.py (facts), prompts.py, lexicon.py (sentence →
meaning), gold.py, criteria.py (grades), faults.py (what is wrong, and how to put it right), replies.py (candidates),
world.py (all of it behind the `Oracle` protocol).
"""
