"""The sub-commands of speech."""

from __future__ import annotations

from collections.abc import Sequence


def parler_command(arguments: Sequence[str]) -> None:
    """`parler [setup | dpo] [folder=FOLDER …]`: Parler-TTS in an environment of its own: is it there, make it, train.

    `setup` makes the environment, once: pinned packages in the user's cache, in $RLHF_LAB_PARLER or in `folder`.
    `timeout_s=N` gives installing more time than 1800 s.
    `dpo model=MODEL prompts=FILE.jsonl reward=FILE.py:NAME to=FOLDER` trains in rounds of DPO: the function scores
    the audio of sampled clips. Rows of the file have `text` and `description`. More: `rounds=3 clips=4 beta=0.1 lr=1e-5
    epochs=1 pairs_per_step=4 length=sum temperature=1 max_frames=860 dtype=float32 device=cpu seed=0`.
    docs/speech/parler.md.
    """
    from rlhf_lab.packs.speech.parler.command import run

    run(arguments)


def features_command(arguments: Sequence[str]) -> None:
    """`features FILE_OR_FOLDER … [to=FILE.csv]`: acoustic features of WAV files: pitch, noise, pauses, spectrum.

    Files have one channel and 16,000 samples a second; `rate=N` measures at another rate, and `resample=true` converts
    files that have a different one. Silence, clipping and damaged files are refused, all at once; `max_bad_files=N`
    leaves up to N of them out, and names them.
    `to` is a file for a line per clip; a feature that a clip does not have is empty. The same command goes on where it
    stopped: what was measured is kept in `cache=FILE.jsonl` by content, without it in FILE.csv.cache.jsonl.
    """
    from rlhf_lab.packs.speech.sound.command import run

    run(arguments)
