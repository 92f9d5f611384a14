"""GAIA (arXiv:2311.12983): questions for assistants with tools, the tools, and two scorers.

Read questions.py (the record of a question and its answer), then mini.py, which has thirty built-in questions over a
small invented web in fixtures/, and rows.py, which reads the official set. tools.py has the tools of an agent:
search.py ranks pages, files.py and read_file.py read attachments. official.py scores an answer by the rules of the
leaderboard, lenient.py (with numerals.py) as a lenient reader would.
"""
