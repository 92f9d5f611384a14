"""Sub-commands of the speech pack."""

from __future__ import annotations

from collections.abc import Sequence


def parler_command(arguments: Sequence[str]) -> None:
    """`parler [setup | dpo] [folder=DIR …]`: check or create the environment of Parler-TTS, or train with DPO.

    Without an action, the command prints if the environment is ready.
    `setup` creates the environment once: pinned packages in the user's cache, in $RLHF_LAB_PARLER or in `folder`.
    `timeout_s=N` sets the time limit of the installation (default 1800 s).
    `dpo model=MODEL prompts=FILE.jsonl reward=FILE.py:NAME to=DIR` trains in rounds of DPO. The function scores the
    audio of sampled clips. Each row of the file has `text` and `description`. `guard=FILE.py:NAME floor=-0.5` refuses
    clips whose value of a second function is below the floor. More options: `rounds=3 clips=4 beta=0.1
    lr=1e-5 epochs=1 pairs_per_step=4 length=sum temperature=1 max_frames=860 dtype=float32 device=cpu seed=0`.
    The same command continues after an interruption, from the last complete round.
    See docs/speech/parler.md.
    """
    from rlhf_lab.packs.speech.parler.command import run

    run(arguments)


def features_command(arguments: Sequence[str]) -> None:
    """`features FILE_OR_DIR … [to=FILE.csv]`: measure acoustic features of audio files: pitch, noise, pauses, spectrum.

    Files must be WAV with one channel and 16,000 samples per second. `rate=N` measures at another rate, and
    `resample=true` converts files that have a different rate. Silent, clipped and damaged files are rejected in one
    error message. `to` is a CSV file with one row per clip; undefined features are empty.
    `library=librosa` also reads FLAC, MP3 and OGG, and measures levels, MFCC and centroid with librosa; `pitch=pyin`
    tracks F0 with its pYIN. `compare=true` prints how NumPy and librosa differ on these files, and their times. These
    three need `pip install 'rlhf_lab[speech]'`.
    """
    from rlhf_lab.packs.speech.sound.command import run

    run(arguments)
