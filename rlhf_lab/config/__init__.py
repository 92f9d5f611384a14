"""From the words of a command line to a checked config. No torch is imported.

Read registry.py (group + kind → settings class), schema.py (YAML values → dataclasses), root.py (the whole config and
the rules between its sections), inventory.py (what conf/ and recipes/ hold), then compose.py (Hydra). overrides.py,
words.py and typed_sweep.py read command lines.
"""
