"""Rewards that are weighted sums of named criteria: hand-weighted, calibrated, or fitted on pairs.

Read settings.py, then criteria_reward.py. The criteria and the weighted sum are in `rewards/criteria/`.
"""
