"""vLLM as the sampler: servers next to the trainer that return tokens and receive its weights.

Read sampler.py (the interface of the built-in sampler), weights.py (which servers there are, and which weights they
have), client.py (one server, over HTTP), server.py (a server that rlhf_lab starts and stops), fit.py (whether a
server suits a rollout) and environment.py (the packages of vLLM). plugin/ runs inside vLLM's processes. docs/vllm.md
shows how to use it.
"""
