"""Safety of policies: how often attacks succeed, and how often harmless prompts are refused.

Read prompt_sets.py (the prompts; the shipped ones are in sets/), asking.py (sampling from a policy) and classify.py
(what a response did), then attacks.py and red_team.py (prompts in disguise), honesty.py (questions with and without an
answer, push-back and sycophancy), canaries.py (secret codes), and safety.py, the stage. regrade.py grades a stored run
with a judge. The rule that recognises refusals is evaluations/refusals.py.
"""
