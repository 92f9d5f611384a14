"""`doctor`: checks of the machine, and of the invariants of training on the user's own model.

examination.py runs everything; findings.py defines a check and its result; subject.py is the model under examination.
"""
