"""Processes on this machine that build one stage together.

Read processes.py (starts them and waits); threads.py decides how many CPU threads each takes.
"""
