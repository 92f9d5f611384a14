"""GAIA: questions for assistants with tools, the tools, and the two scorers (arXiv:2311.12983).

questions.py is the record of a question; mini.py the thirty questions of our own over a small invented web; tools.py
what an agent may call: search.py ranks pages, files.py reads attachments. answers.py says how an answer is given and
finds it; official.py scores it as the leaderboard does, lenient.py (with numerals.py) as a patient reader would.
Start at questions.py. The official set is read by packs/agents/gaia/rows.py.
"""
