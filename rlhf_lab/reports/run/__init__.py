"""Sections of the page of a run.

Read header.py first. Each module provides sections, in the order of reports/sections.py.
"""
