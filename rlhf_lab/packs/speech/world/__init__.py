"""Speech world: synthetic utterances, good and defective deliveries of them, and the true naturalness of a clip.

Read phones.py, prompts.py (the utterances), delivery.py (their deliveries), recogniser.py, gold.py (the true reward),
clip_world.py and world.py. english_prompts.py, english_delivery.py and english_world.py are the counterparts for
espeak-ng. settings.py, speech.py and espeak.py define the corpora of `data=speech` and `data=espeak`.
"""
