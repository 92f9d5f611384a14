"""Statistics of judgements: agreement, bias, win rates, ranking.

Read win_rates.py and ranking.py, then judge_bias.py, agreement.py and prediction_powered.py (a judge's labels
corrected by a person's). Pure functions on arrays, as in `statistics/` of the core.
"""
