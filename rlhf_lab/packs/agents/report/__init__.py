"""The page on which every attempt of an agent can be read: turns, calls with their results, scores, what was expected.

view.py makes what templates/attempts.html.j2 shows.
"""
