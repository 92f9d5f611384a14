"""Packs: domains outside the core, one directory each. Any of them may be deleted, so none is named here.

A pack is a directory whose `__init__.py` defines `PACK`, an object of the class `Pack` in core/packs.py; it is found
by its directory. Inside are its settings beside their code, `conf/` with options, `recipes/`, and sub-packages. The
core imports no pack, and which pack may import which is in tests/lint/test_layers.py.
"""
