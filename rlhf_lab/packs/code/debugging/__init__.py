"""Programs with bugs, and the hidden assertions that a repaired one satisfies.

tasks/*.yml have the tasks, a file per tier; start at tier_1.yml. debugging.py reads them: what an agent is shown, and
what only the grader knows.
"""
