"""MBPP (arXiv:2108.07732) and files of its form as data: tasks in words, a solution, and assertions as hidden tests.

Read mbpp.py; settings.py has the settings of `data=mbpp`.
"""
