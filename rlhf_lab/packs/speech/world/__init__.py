"""Speech worlds: synthetic utterances, good and defective deliveries of them, and the true naturalness of a clip.

Read phones.py, prompts.py, delivery.py, recogniser.py, gold.py, clip_world.py and speech.py (`data=speech`). The
counterparts for espeak-ng are english.py and espeak.py (`data=espeak`).
"""
