"""The sub-commands, and what the console prints around a run.

commands.py lists them; one file for each that has more to it than a call.
"""
