"""inspect-ai: logs of the lab's benchmarks for its viewer, the lab's models and sandbox for its tasks.

Without inspect: logs.py (a run directory as its logs), messages.py (its messages as requests, replies as its messages),
gathering.py (questions that come one by one, asked together) and workspace.py (a folder and commands over a sandbox).
With it, and imported by it alone: provider.py, sandbox.py and plugin.py, which its entry point names.
"""
