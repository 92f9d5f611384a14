"""Real speech without a download: espeak-ng, a program that reads English aloud.

A text said with the same options sounds the same, so each is said once: the audio is kept in the user's cache under a
digest of the text, the options and the program's version.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import make_folder, replacing
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.packs.speech.sound.audio import PCM_STEPS, RATE, read_wav, wav_bytes

PROGRAM = "espeak-ng"
SECONDS_PER_CALL = 60.0
"""A sentence takes about a hundredth of a second."""
VERSION = 1
"""Increased whenever the same options are given to the program in another way; part of the digest."""


@dataclass(frozen=True)
class Options:
    """How espeak-ng is to say a text.

    Args:
        voice: language and variant, `en-us+f2`. `en-gb` ignores its variant; `en` is the same accent and does not.
        words_per_minute: rate, from 80 on.
        pitch: base pitch, 0…99.
        pitch_range: how far the pitch moves, 0…99; 0 is monotone.
        amplitude: 0…200. From about 150 on, the loudest samples of the male voices are cut off.
    """

    voice: str
    words_per_minute: int = 165
    pitch: int = 50
    pitch_range: int = 50
    amplitude: int = 60


class Espeak:
    """Says texts, each once.

    Args:
        folder: where audio is kept; by default `rlhf_lab/espeak` in the user's cache.

    Raises ConfigError where the program is not installed.
    """

    def __init__(self, folder: Path | None = None):
        program = shutil.which(PROGRAM)
        if program is None:
            raise ConfigError(
                f"data=espeak speaks with {PROGRAM}, which is not installed (or not in PATH); run `apt-get install "
                f"{PROGRAM}` (on a Mac `brew install {PROGRAM}`), or use data=speech, which needs no program"
            )
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = folder or caches / "rlhf_lab" / "espeak"
        self._program = program

    @cached_property
    def version(self) -> str:
        """Of the program; other versions make other audio."""
        printed = self._call("--version")
        match = re.search(r"text-to-speech: *(\S+)", printed)
        return match.group(1) if match else printed.strip()

    def say(self, text: str, options: Options) -> NDArray[np.float32]:
        """Samples at `RATE`, −1…1.

        Raises DataError where the program fails, or gives no audio.
        """
        path = self._path(text, options)
        if path.is_file():
            with suppress(DataError):  # damaged: said anew
                return read_wav(path, limits=None).samples_N
        with TemporaryDirectory(dir=scratch_dir()) as temporary:
            made = Path(temporary) / "said.wav"
            # only SSML can say how far the pitch moves
            marked = f'<prosody range="{options.pitch_range}">{escape(text)}</prosody>'
            self._call(
                *("-m", "-b", "1", "-v", options.voice, "-s", str(options.words_per_minute)),
                *("-p", str(options.pitch), "-a", str(options.amplitude), "-w", str(made), marked),
            )
            audio = read_wav(made, RATE, resample=True, limits=None)
        with suppress(OSError):  # a home that cannot be written to costs the call again
            make_folder(path.parent)
            with replacing(path, every_process=True) as temporary_path:
                temporary_path.write_bytes(wav_bytes(audio))
        # the 16 bits that are read from the cache next time
        steps_N = np.rint(audio.samples_N * PCM_STEPS).clip(-PCM_STEPS, PCM_STEPS - 1)
        return np.asarray(steps_N / PCM_STEPS, dtype=np.float32)

    def _path(self, text: str, options: Options) -> Path:
        content = json.dumps([VERSION, self.version, RATE, text, asdict(options)])
        digest = sha256(content.encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest}.wav"

    def _call(self, *arguments: str) -> str:
        """What the program prints. Raises DataError where it fails."""
        command = [self._program, *arguments]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=SECONDS_PER_CALL, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"{PROGRAM} did not answer: {error}; try it by itself: {_shown(command)}") from error
        if ended.returncode:
            reason = ended.stderr.strip() or f"exit status {ended.returncode}"
            raise DataError(f"{PROGRAM} failed: {reason}; try it by itself: {_shown(command)}")
        return ended.stdout


def _shown(command: list[str]) -> str:
    return " ".join(f"'{word}'" if re.search(r"[\s<>]", word) else word for word in command)
