"""The processes that build one stage together on this machine.

processes.py starts them and waits; threads.py says how many CPU threads each takes.
"""
