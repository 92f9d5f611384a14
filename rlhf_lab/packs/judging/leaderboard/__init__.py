"""A ranking of policies from the judgements of a judge, optionally with people's labels.

Read judgements.py (rows of files), board.py (the numbers), then report.py (words, files and console). The formulas are
in `packs/judging/statistics/`.
"""
