"""On-policy optimisation: PPO with a critic, and the GRPO family without one.

Read settings.py and on_policy.py (the core of both), then ppo.py or grpo.py (how credit is assigned). rollouts.py
samples and scores episodes, shaping.py turns rewards into training scores, curriculum.py prefers tasks that the policy
solves sometimes.
"""
