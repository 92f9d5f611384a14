"""Training rewards: Bradley-Terry, rubric, outcome and process models.

Read settings.py, reward_model.py with reward_pairs.py (losses) and reward_members.py (ensembles); rubric_rm.py;
step_reward.py (outcome and process models).
"""
