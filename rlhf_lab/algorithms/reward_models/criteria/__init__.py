"""Rewards that are weighted sums of criteria: by hand, validated and calibrated, or with fitted weights.

Read settings.py, then criteria_reward.py; the model and the criteria are in rewards/criteria/.
"""
