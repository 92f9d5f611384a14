"""A judge as a term of the reward, and as the gold of a run on real data.

Read settings.py, then judge.py and gold.py.
"""
