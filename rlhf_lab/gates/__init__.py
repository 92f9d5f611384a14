"""`gate`: does a run satisfy a suite, and is it no worse than the run that was accepted last?

Read scores.py (the values of a check in a run), verdicts.py (what they decide), register.py (accepted runs), then
gate.py. table.py prints the decision. The gate runs no model.
"""
