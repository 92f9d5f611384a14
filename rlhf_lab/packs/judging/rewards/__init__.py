"""A judge as a term of the reward, and as the gold.

Read settings.py, then judge.py and gold.py.
"""
