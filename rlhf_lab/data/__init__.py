"""From files, a hub or a world to a corpus of pairs, with every dropped row counted.

Read settings.py (what can be chosen), loading.py (rows → corpus), then a source such as pairs.py. reading.py opens
files, rows.py says what is wrong with a row, formats.py converts between data set types, audit.py examines a corpus.
"""
