"""Grades of pairs by a judge, training data of `rubric_rm`.

Read settings.py, then grade.py.
"""
