"""Preference pairs of clips that a policy speaks, ranked by a reward of their audio.

Read settings.py first. tts_preferences.py is the stage, and `ClipWorld.prompt_grid` the prompts.
"""
