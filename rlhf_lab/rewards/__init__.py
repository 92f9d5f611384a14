"""From (prompt, reply) to a score: terms, and the graph that combines them and keeps their parts.

Read term.py (what every term can set), graph.py (the sum and its parts), then a term: learned/, rules/ or external/.
Each term stands beside its settings. saved.py is `load_reward` for Python.
"""
