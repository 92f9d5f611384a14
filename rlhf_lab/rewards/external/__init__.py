"""Rewards from elsewhere: a Python function of the user, a service, a judge.

functions.py finds a user's function, post.py is the HTTP request, checked.py one package up refuses bad answers.
"""
