"""World of repairs: a small language, its interpreter, planted bugs and demonstrations of their repair.

Read programs.py, interpreter.py, bugs.py, demonstrations.py and world.py. runs.py defines the responses of an agent and
the answers it gets. repairs.py creates the corpus of `data=repairs`.
"""
