"""Replies that are programs, checked by running the tests of their row in the sandbox.

settings.py, then code_tests.py (facts and reply → score) and extraction.py (which part of a reply is the program).
"""
