"""Attacks on the sandbox: programs that try to get out, to get at secrets, to use too much, or to be graded better.

Start at table.py, which runs all of them at a level and says what stopped each; probe.py is what one is made of,
scene.py what there is to reach. reach.py and use.py have the probes, candidates.py those of the grader.
docs/code/sandbox.md
has what they came to.
"""
