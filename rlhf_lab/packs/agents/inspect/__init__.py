"""Bridge to inspect-ai: exports benchmarks as inspect logs, and lets inspect tasks use rlhf_lab's models and sandbox.

Read logs.py (`export`: a run directory as logs) and messages.py (inspect's messages as requests), then gathering.py
(batching of concurrent requests) and workspace.py (a persistent directory and commands on top of the sandbox). These
modules do not import inspect-ai. provider.py, sandbox.py and plugin.py are imported by inspect-ai only, through the
entry point `inspect_ai`. docs/agents/interop.md lists the commands.
"""
