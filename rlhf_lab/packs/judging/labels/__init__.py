"""Labels by people: which of two responses to a prompt is better? `python -m rlhf_lab label` serves the page.

Read items.py (the labelled comparisons, in blind order), sources.py (their origin) and store.py (the append-only
store), then session.py and server.py (the page) and agreement.py (statistics of labels). command.py is the sub-command,
which also exports files for training.
"""
