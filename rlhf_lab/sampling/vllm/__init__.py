"""vLLM as the sampler of the native engine: servers beside the trainer that are asked for tokens and get its weights.

Read sampler.py (the same interface as the lab's own sampler), weights.py (which servers there are and which weights
they have), client.py (one server, over HTTP), server.py (a server that the lab starts and ends) and environment.py (the
packages it runs with). plugin/ has what runs inside vLLM's processes. docs/vllm.md shows how to use it.
"""
