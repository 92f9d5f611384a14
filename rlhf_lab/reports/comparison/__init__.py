"""Page that compares two runs.

Read compare.py (the numbers) and view.py (the page). notes.py lists what is not comparable, with scales.py; report.py
writes the files.
"""
