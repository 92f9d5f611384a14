"""Named criteria of a reply that a program computes without knowing the truth, and the rewards made of them.

sets.py has the criteria of each domain, model.py the weighted sum of them; design.py is the term.
"""
