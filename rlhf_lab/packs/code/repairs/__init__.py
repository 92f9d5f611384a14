"""World of repairs: a small language, its interpreter, planted bugs and demonstrations of their repair.

Read programs.py, interpreter.py, bugs.py, runs.py (responses of an agent, the answers it gets, demonstrations) and
world.py. repairs.py creates the corpus of `data=repairs`.
"""
