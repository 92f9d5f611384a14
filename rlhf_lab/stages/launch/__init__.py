"""Processes on this machine that build one stage together: processes.py starts them and waits."""
