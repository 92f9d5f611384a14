"""Sections of the page of a study.

Read header.py first, then results.py (values used by several sections). Each module provides sections, in the order
of reports/sections.py. overview.py writes one page about several studies.
"""
