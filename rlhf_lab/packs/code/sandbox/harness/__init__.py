"""What the grader runs inside two sandboxes: a candidate's code in one, the hidden tests in the other.

Start at tests.py, then candidate.py; plain.py is the form of the values that pass between them. grader.py, one folder
up, starts both and carries their messages. They import nothing of the lab but each other.
"""
