"""Pages: of a run, of a study, of two of either, of a league.

A page is a list of sections (sections.py), which page.py writes; report.py begins. The folders run/, study/,
comparison/, leaderboard/, monitor/, reward/, speech/ and attempts/ give the sections.
"""
