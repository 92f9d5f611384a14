"""From (prompt, reply) to a score: terms, and the graph that combines them and keeps their parts.

Read term.py (the settings every term has), graph.py (the sum and its parts), then a term: learned/, rules/ or
external/, each with its settings.py. saved.py is `load_reward` for Python.
"""
