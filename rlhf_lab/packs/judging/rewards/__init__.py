"""A judge as a term of the reward, as the gold of a run on real data, and as the source of an audit's comparisons.

Read settings.py, then judge.py and audit.py.
"""
