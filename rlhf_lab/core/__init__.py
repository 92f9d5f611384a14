"""The foundation of the other packages: data types, errors, files, processes.

types.py (what flows between parts), messages.py, episodes.py (tasks, episodes, environments), errors.py (what a user is
told), files.py and seal.py (complete or absent), record_file.py (data that do not fit in memory), ranks.py (the
processes of a stage), console.py (progress).
Nothing here imports another package of the lab.
"""
