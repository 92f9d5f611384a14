"""Who writes the better replies: a league of policies from the judgements of a judge.

Read judgements.py (rows of files), style.py (what of a reply is counted as style), board.py (the numbers), then view.py
(the words and cells) and report.py (files and console). The files are read here because nothing else reads them: a
league is a page about several runs, like a comparison, and its numbers are all in `statistics`.
"""
