"""Labels by people: two replies to a prompt, which is better? `python -m rlhf_lab label` serves the page.

Read items.py (what is labelled, the blind order), sources.py (where it comes from), store.py (what is kept), then
session.py and server.py (what the page is told), agreement.py (what the labels say) and export.py (files for others).
"""
