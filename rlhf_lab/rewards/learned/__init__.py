"""Rewards that a trained model gives: Bradley-Terry, rubric, process and outcome models, follow-up likelihood.

settings.py has the settings of each; a term is built by `build` of the module with its name.
"""
