"""What a policy does when it is asked for harm, and when it only looks so: attacks that succeed, refusals too many.

Read prompt_sets.py (what is asked), asking.py (a policy that is asked), classify.py (what a reply did) with
refusals.py, attacks.py and red_team.py (prompts in disguise), many_shot.py and sycophancy.py, then safety.py, the
stage. sets/ holds the prompts that are shipped.
"""
