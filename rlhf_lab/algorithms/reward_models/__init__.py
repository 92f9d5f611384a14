"""Training of reward models: Bradley-Terry, rubric, outcome and process models.

Read settings.py, then reward_model.py with reward_pairs.py (the losses of a step) and reward_members.py (ensembles).
rubric_rm.py trains on grades, which grades.py reads; step_reward.py trains outcome and process models;
attempt_audit.py measures how well a model chooses among attempts of an agent. criteria/ constructs rewards from named
criteria.
"""
