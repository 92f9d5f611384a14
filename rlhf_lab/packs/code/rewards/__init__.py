"""Reward terms for responses that are programs.

Read settings.py, then code_tests.py (runs the tests of a row in the sandbox) and extraction.py (extracts the program of
a response). code_quality.py analyses the program without running it.
"""
