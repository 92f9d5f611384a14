"""What the page of a run shows.

run_view.py first; the others are its panels.
"""
