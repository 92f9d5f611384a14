"""A recipe's stages: planned, found in the store or built, each in its own directory.

Read artifacts.py (stages and their keys), execute.py (builds one), reuse.py (takes one from the store).
code_digest.py knows which code a result belongs to; preflight.py looks for what would fail; side_by_side.py and
launch/ start processes.
"""
