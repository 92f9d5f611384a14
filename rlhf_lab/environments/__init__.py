"""The offline worlds, whose true reward is known.

dialogue/ (prompts, replies, gold reward, grades), reviews/ (comments on changes of code), arithmetic/ (word problems
and worked solutions) and maths/ (final answers and chains of steps, for real data too). annotator.py turns gold reward
into noisy labels, grader.py criteria into noisy grades. Start at dialogue/world.py.
"""
