"""On-policy optimisation: PPO with a critic, and the critic-free family around GRPO.

Read settings.py, on_policy.py (the core both share), then ppo.py or grpo.py (how credit is assigned). rollouts.py
draws and scores, shaping.py turns rewards into scores, critic.py is the value model.
"""
