"""The foundation of all other packages; it imports none of them.

Data: types.py (pairs, corpora, reward batches), messages.py, episodes.py (tasks, episodes, environments), tools.py,
media.py. Interfaces between packages: packs.py (what a package adds), capabilities.py, measures.py, metrics.py,
ranges.py. Support of a run: errors.py, files.py and checksums.py (files that are complete or absent), record_file.py
(data larger than memory), ranks.py (the processes of a stage), console.py (progress). Start with types.py and packs.py.
"""
