"""Rewards that a trained model gives: Bradley-Terry, rubric, process and outcome models, follow-up likelihood.

settings.py says what each can set; `build` of the module with the name of the term makes it.
"""
