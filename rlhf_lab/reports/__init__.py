"""Pages: of a run, of a study, of two of either.

report.py writes them from templates/; run/, study/ and comparison/ say what stands on each.
"""
