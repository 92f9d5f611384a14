"""Rewards: the terms that score responses, and the graph that combines terms and stores their values.

Read term.py (settings common to all terms), graph.py and combine.py (the combination), then a term. learned/ contains
trained models, rules/ terms without a model, verifiers/ checks of a response against its row, criteria/ named features
of a response, external/ functions and services of the user. saved.py is `load_reward` for Python; gold_oracle.py uses a
reward model as the gold reward of real data.
"""
