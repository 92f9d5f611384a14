"""Sub-commands of the core, and console output of a run.

Read commands.py, which defines most of them, and table.py, which collects the sub-commands of all packs.
summary.py prints a run. The other modules define sub-commands that need more than one function.
"""
