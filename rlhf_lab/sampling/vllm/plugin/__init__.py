"""What runs inside vLLM's processes, in vLLM's environment: lab_worker.py, which reads weights that a trainer wrote.

This folder is put on vLLM's path by itself (server.py): nothing here may import the lab.
"""
