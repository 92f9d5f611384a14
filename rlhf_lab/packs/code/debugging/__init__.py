"""Hand-written programs with bugs, and hidden assertions that a repaired program must satisfy.

tasks/ contains a YAML file for each tier of difficulty. debugging.py reads them. It separates the text for the agent
from the data that only the grader may use.
"""
