"""Page that compares two runs or two studies.

Read compare.py (the numbers of two runs), studies.py (of two studies) and view.py (the page). notes.py lists what is
not comparable, with scales.py; report.py writes the files.
"""
