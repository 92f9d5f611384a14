"""Judging: language models and people who are asked, and what is made of their answers.

Begin with packs/judging/judges/client.py; then labels/, leaderboard/, synthesis/, safety/.
"""
