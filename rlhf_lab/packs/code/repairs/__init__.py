"""Programs with planted bugs that a small model can repair: a closed language, its interpreter, bugs, demonstrations.

Read in this order: programs.py, interpreter.py, bugs.py, demonstrations.py, world.py.
"""
