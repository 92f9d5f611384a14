"""What a finished run says: read from its directory, put into words.

Read rundir.py (the directory as data), gains.py and severity.py (against the starting policy), wording.py (names of
metrics), answer.py (the recipe's question answered in a sentence).
"""
