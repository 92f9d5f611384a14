"""Stages of a recipe: planned, found in the store or built, each in its own directory.

Read artifacts.py (stages and their keys), execute.py (builds one) and reuse.py (loads one from the store).
code_digest.py determines which code a result belongs to, manifest.py records it, and preflight.py detects what would
fail. side_by_side.py builds stages in parallel. launch/ starts the processes that build one stage together
(worker.py).
"""
