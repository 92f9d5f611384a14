"""Code: programs that a model wrote, the sandbox that runs them, rewards of code, the world of repairs.

Begin with packs/code/sandbox/sandbox.py and rewards/code_tests.py.
"""
