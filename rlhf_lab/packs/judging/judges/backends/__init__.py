"""The backends that answer requests; each module builds the backend of the settings class with its name.

Read settings.py, then simulated.py (answers from the truth of a world and sends nothing) with teacher.py, which
writes text for it. anthropic.py and openai_compatible.py call a service, local.py samples from a model on this
machine.
"""
