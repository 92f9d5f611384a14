"""Who answers a judge's requests; each module builds the backend of the settings class of its name in settings.py.

simulated.py answers from the world's truth and sends nothing; anthropic.py and openai_compatible.py call a service;
local.py samples from a model on this machine.
"""
