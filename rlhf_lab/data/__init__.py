"""Data sources: files, hub data sets and synthetic worlds, read into a corpus of prompts and responses.

Every dropped row is counted. Suggested order of reading: settings.py and file_settings.py (the settings), transcript.py
(messages ↔ text), loading.py (rows → corpus), then a source such as pairs.py. reading.py and text_files.py open files,
messages.py and rows.py describe problems of a row, split_rows.py checks text from other sources, formats.py converts
between data set types, audit.py and duplicates.py examine texts, generated.py and mixture.py read and mix corpora
written by earlier stages. adapters/ runs environments of other libraries.
"""
