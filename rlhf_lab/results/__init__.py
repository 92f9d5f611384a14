"""A finished run, read from its directory and put into words.

Read rundir.py (the directory as data), gains.py and severity.py (policies against the starting policy), wording.py
(names of metrics) and answer.py (the recipe's question answered in a sentence). The modules whose names start with
`answer_` contain the answers of each kind of run.
"""
