"""From files, a hub or a world to a corpus of prompts and replies, with every dropped row counted.

Read settings.py and file_settings.py (what can be chosen), transcript.py (messages ↔ text), loading.py (rows → corpus),
then a source such as pairs.py. reading.py opens files, messages.py and rows.py say what is wrong with a row, replies.py
reads text of other origin, formats.py converts between data set types, audit.py examines a corpus.
"""
