"""Training of reward models: Bradley-Terry, rubric, outcome and process models, and rewards of named criteria.

Read settings.py, then reward_model.py with reward_members.py (ensembles, and the losses of a step). rubric_rm.py trains
on grades, which grades.py reads; step_reward.py trains outcome and process models.
"""
