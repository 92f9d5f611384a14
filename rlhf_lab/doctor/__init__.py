"""`doctor`: checks of the machine, and of the invariants of training on the user's own model.

Read examination.py, which runs everything, then findings.py (a check and its result) and subject.py (the model under
examination). The checks of the machine are in environment.py, installation.py, parts.py and storage.py. Those of the
model are in tokens.py, forward.py and training.py.
"""
