"""Page that shows every attempt of an agent: turns, calls with their results, scores, expected answers.

attempts.py prepares the data for the template attempts.html.j2.
"""
