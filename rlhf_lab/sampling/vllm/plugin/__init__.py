"""Code that runs inside vLLM's processes, in vLLM's environment.

lab_worker.py reads weights that a trainer wrote; lab_serve.py starts the server and ends it with its parent.
sampling/vllm/server.py puts only this directory on vLLM's path, so nothing here may import rlhf_lab.
"""
