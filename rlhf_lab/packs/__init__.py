"""Packs: domains beside the core, one folder each.

A folder with `PACK` in its `__init__.py` is a pack (`core/packs.py`); the core imports none of them.
"""
