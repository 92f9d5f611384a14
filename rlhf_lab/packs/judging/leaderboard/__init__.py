"""A ranking of policies from the judgements of a judge, optionally with people's labels.

Read judgements.py (rows of files), style.py (which properties of a response count as style), board.py (the numbers),
then view.py (words and cells) and report.py (files and console). The formulas are in `packs/judging/statistics/`.
"""
