"""What the page of a study shows.

header.py first; each module gives sections, in the order of `reports/sections.py`.
"""
