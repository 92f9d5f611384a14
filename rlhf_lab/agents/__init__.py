"""Agents: programs that ask a model, call tools and come to an answer. They train nothing.

Start at agent.py.
"""
