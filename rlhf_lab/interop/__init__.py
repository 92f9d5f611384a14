"""The lab beside other harnesses: what they can use of it, and what it hands to them.

Each folder is one of them and an extra with constraints of its own: inspect/ is inspect-ai, parler/ is Parler-TTS;
publishing/ hands a model to a folder or the hub. Nothing in the lab needs what is here. docs/agents/interop.md and
docs/publish.md have the commands.
"""
