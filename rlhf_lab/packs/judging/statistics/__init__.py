"""Statistics of judgements: agreement, bias, win rates, ranking.

Begin with win_rates.py and ranking.py.
"""
