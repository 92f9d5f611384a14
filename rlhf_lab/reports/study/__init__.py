"""What the page of a study shows.

study_view.py first; the others are its panels.
"""
