"""`gate`: does a run hold what a suite demands, and is it no worse than the run that was accepted last?

Read scores.py (a check's values of a run), verdicts.py (what they decide), register.py (accepted runs), then gate.py;
table.py shows it. The gate runs no model.
"""
