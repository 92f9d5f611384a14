"""Programs that the grader runs in two sandboxes: the graded code in one, the hidden tests in the other.

Read tests.py, then candidate.py. plain.py serialises the values between them. packs/code/sandbox/grader.py starts both
programs and relays their messages. These modules import nothing from rlhf_lab except each other.
"""
