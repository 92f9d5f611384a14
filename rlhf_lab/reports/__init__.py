"""Report pages of runs, studies and comparisons.

A page is a list of sections (sections.py), which page.py writes; start with report.py. The sections are in run/,
study/, monitor/ and reward/, the page that compares two runs is in comparison/, Jinja templates are in
templates/. Packs add more sections and pages.
"""
