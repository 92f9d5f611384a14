"""Rewards from elsewhere: a Python function of the user, a service, a judge.

functions.py finds a user's function, post.py sends HTTP requests, `rewards/checked.py` refuses malformed answers.
"""
