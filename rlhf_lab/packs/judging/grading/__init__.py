"""Grades of both responses of a pair by a judge: training data for `rubric_rm`.

Read settings.py, then grade.py.
"""
