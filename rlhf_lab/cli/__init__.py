"""Sub-commands of the core, and console output of a run.

Read commands.py, which defines a function per sub-command, and table.py, which collects the sub-commands of all packs.
summary.py prints a run. The other modules implement sub-commands that need more than one function.
"""
