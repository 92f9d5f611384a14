"""Processes on this machine that build one stage together.

Read processes.py (starts them, waits, and decides how many CPU threads each takes).
"""
