"""Agents: programs that ask a model and call tools, their worlds, benchmarks and reports.

Begin with harness/program.py and benchmarks/agent_bench.py.
"""
