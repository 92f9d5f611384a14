"""Stages that measure agents.

gaia_settings.py is what can be chosen of GAIA, gaia_tasks.py its tasks, tools and scores. web_search.py and
web_pages.py are the live web for it.
"""
