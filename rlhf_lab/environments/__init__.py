"""Offline worlds of the core, whose gold reward is known.

dialogue/ has prompts, responses and their gold reward, reviews/ has comments on code changes, arithmetic/ has word
problems with worked solutions. maths/ parses final answers and chains of steps, also those of real data. annotator.py
turns gold rewards into noisy labels, grader.py turns criteria into noisy grades, and splits.py decides which prompts
are held out. Start with dialogue/world.py. The packs have further worlds.
"""
