"""English speech synthesis with the program espeak-ng, which needs no download.

The output is deterministic, so each text is synthesised once for the same options. The audio is stored in the user's
cache under a digest of the text, the options and the version of the program.
"""

from __future__ import annotations

import json
import os
import re
import shlex
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
from rlhf_lab.core.files import make_dir, replacing
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.packs.speech.sound.audio import PCM_STEPS, RATE, read_audio, wav_bytes

PROGRAM = "espeak-ng"
SECONDS_PER_CALL = 60.0
"""Time limit of one call in seconds. A sentence takes about 0.01 seconds."""
VERSION = 1
"""Version of the translation of options to command-line arguments; part of the digest. Increase it if they change."""


@dataclass(frozen=True)
class EspeakOptions:
    """Options of espeak-ng for one text.

    Args:
        voice: language and variant, such as `en-us+f2`. `en-gb` ignores its variant; `en` has the same accent and uses
            the variant.
        words_per_minute: speaking rate, 80 or more.
        pitch: base pitch, 0…99.
        pitch_range: extent of pitch movement, 0…99; 0 is monotone.
        amplitude: volume, 0…200. From about 150 on, the male voices are clipped.
    """

    voice: str
    words_per_minute: int = 165
    pitch: int = 50
    pitch_range: int = 50
    amplitude: int = 60


class Espeak:
    """Speech synthesiser with a cache in `directory`, by default in the user's cache.

    Raises ConfigError if the program is not installed.
    """

    def __init__(self, directory: Path | None = None):
        program = shutil.which(PROGRAM)
        if program is None:
            raise ConfigError(
                f"data=espeak needs the program {PROGRAM}, which is not installed (or not in PATH); run `apt-get "
                f"install {PROGRAM}` (on a Mac `brew install {PROGRAM}`), or use data=speech, which needs no program"
            )
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.directory = directory or caches / "rlhf_lab" / "espeak"
        self._program = program

    @cached_property
    def version(self) -> str:
        """Version of the program, because different versions produce different audio."""
        printed = self._call("--version")
        match = re.search(r"text-to-speech: *(\S+)", printed)
        return match.group(1) if match else printed.strip()

    def say(self, text: str, options: EspeakOptions) -> NDArray[np.float32]:
        """Synthesise a text. Returns samples at `RATE`, −1…1.

        Raises DataError if the program fails or produces no audio.
        """
        path = self._path(text, options)
        if path.is_file():
            with suppress(DataError):  # a damaged cache file is replaced
                return read_audio(path, any_level=True).samples_N
        with TemporaryDirectory(dir=scratch_dir()) as temporary:
            generated = Path(temporary) / "said.wav"
            # the extent of pitch movement has no command-line option, only an SSML attribute
            marked = f'<prosody range="{options.pitch_range}">{escape(text)}</prosody>'
            self._call(
                *("-m", "-b", "1", "-v", options.voice, "-s", str(options.words_per_minute)),
                *("-p", str(options.pitch), "-a", str(options.amplitude), "-w", str(generated), marked),
            )
            audio = read_audio(generated, RATE, resample=True, any_level=True)
        with suppress(OSError):  # the cache is optional: without write access the text is synthesised again next time
            make_dir(path.parent)
            # several processes may synthesise the same text; each one writes its own temporary file
            with replacing(path, every_process=True) as temporary_path:
                temporary_path.write_bytes(wav_bytes(audio))
        # rounded to 16 bits, so that the first call returns the same samples as later reads from the cache
        steps_N = np.rint(audio.samples_N * PCM_STEPS).clip(-PCM_STEPS, PCM_STEPS - 1)
        return np.asarray(steps_N / PCM_STEPS, dtype=np.float32)

    def _path(self, text: str, options: EspeakOptions) -> Path:
        # everything that determines the audio is part of the digest
        content = json.dumps([VERSION, self.version, RATE, text, asdict(options)])
        digest = sha256(content.encode()).hexdigest()
        return self.directory / digest[:2] / f"{digest}.wav"

    def _call(self, *arguments: str) -> str:
        """Run the program and return its standard output. Raises DataError if it fails."""
        command = [self._program, *arguments]
        try:
            finished = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=SECONDS_PER_CALL, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"{PROGRAM} did not answer: {error}; run it yourself: {shlex.join(command)}") from error
        if finished.returncode:
            reason = finished.stderr.strip() or f"exit status {finished.returncode}"
            raise DataError(f"{PROGRAM} failed: {reason}; run it yourself: {shlex.join(command)}")
        return finished.stdout
