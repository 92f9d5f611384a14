"""Signal processing of speech: audio files, acoustic features, a renderer, a codec, and the text form of its tokens.

Start with stream.py (how a clip is written as a response), codec.py and renderer.py. Continue with audio.py and
features.py and the modules they use (frame_grid.py, spectrum.py, periodicity.py). recogniser.py recognises phones,
espeak.py calls espeak-ng, and command.py is the sub-command `features`. The signal processing works on arrays and does
not depend on models, data sets or rewards. The speech world is in `packs/speech/world/`.
"""
