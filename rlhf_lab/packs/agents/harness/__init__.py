"""Agents: programs that ask a model, call tools and come to an answer. They train nothing.

Start at agent.py (what a harness wants), program.py (how attempts advance together) and react.py; tool_use.py is the
loop that most of them share. prompts.py and brief.py are their words, models.py who speaks them, transcripts.py what
becomes of them as training data.
"""
