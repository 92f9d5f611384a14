"""Pages: of a run, of a study, of two of either, of a league.

report.py writes them from templates/; run/, study/, comparison/ and leaderboard/ say what stands on each.
"""
