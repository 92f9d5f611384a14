"""Sub-command `features`: measures acoustic features of audio files, prints a summary and writes a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from rlhf_lab.config.schema import read_options
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.files import make_dir, write_text
from rlhf_lab.core.ranges import CheckedSettings, Gt
from rlhf_lab.packs.speech.sound.audio import FORMATS, RATE, Library, import_librosa, read_audio
from rlhf_lab.packs.speech.sound.features import FEATURES, NAMES, PitchTracker, extract_many
from rlhf_lab.packs.speech.sound.librosa_analysis import compare_libraries, comparison_table

USAGE = "features takes WAV files or directories of WAV files: python -m rlhf_lab features DIR to=features.csv"


@dataclass(frozen=True)
class FeaturesOptions(CheckedSettings):
    """Options of the sub-command, written after the files; `features --help` describes them."""

    to: str = ""
    rate: Annotated[int, Gt(0)] = RATE
    resample: bool = False
    library: Library = "numpy"
    pitch: PitchTracker = "autocorrelation"
    compare: bool = False

    def rules(self) -> tuple[Rule, ...]:
        message = "compare=true prints a comparison of libraries and writes no features; leave out to"
        return (*super().rules(), (not (self.compare and self.to), message))


def run(arguments: Sequence[str]) -> None:
    """Measure the files and print a summary.

    Raises ConfigError for an invalid command, and DataError that lists all files that cannot be measured.
    """
    # a word with an equals sign is a source if such a file exists
    sources = [Path(word) for word in arguments if "=" not in word or Path(word).exists()]
    options: FeaturesOptions = read_options(FeaturesOptions, [word for word in arguments if Path(word) not in sources])
    if not sources:
        raise ConfigError(USAGE)
    if options.library == "librosa" or options.pitch == "pyin" or options.compare:
        import_librosa()  # a missing library is one message, not one per file
    files = [file for source in sources for file in _audio_files(source, options.library)]
    if options.compare:
        clips = [read_audio(file, options.rate, resample=options.resample, library=options.library) for file in files]
        console.print(comparison_table(compare_libraries(clips), clips))
        return
    features_N7 = extract_many(
        files,
        rate=options.rate,
        resample=options.resample,
        progress="features",
        library=options.library,
        pitch=options.pitch,
    )
    console.print(_summary(features_N7))
    if options.to:
        to = Path(options.to)
        make_dir(to.parent)
        write_text(to, _csv(files, features_N7))
        console.print(f"{to}: {len(files)} clips")


def _audio_files(source: Path, library: Library) -> list[Path]:
    """Return the file itself, or the audio files of a directory and its sub-directories, sorted by name.

    In a directory, only WAV files count unless `library` is librosa, which reads more formats.
    """
    if not source.is_dir():
        return [source]
    endings = FORMATS if library == "librosa" else (".wav",)
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in endings)
    if not files:
        hint = "" if library == "librosa" else " (library=librosa also reads FLAC, MP3 and OGG)"
        raise ConfigError(
            f"{source} has no {' or '.join(endings)} files; name a directory that has some, or single files{hint}"
        )
    return files


def _summary(features_N7: NDArray[np.float64]) -> Table:
    table = Table(title=f"features of {len(features_N7)} clips", title_justify="left")
    for column in ("feature", "unit", "mean", "sd", "lowest", "highest", "undefined"):
        table.add_column(column, justify="left" if column in ("feature", "unit") else "right")
    for feature, column_N in zip(FEATURES, features_N7.T, strict=True):
        defined = column_N[~np.isnan(column_N)]
        numbers = [defined.mean(), defined.std(), defined.min(), defined.max()] if len(defined) else []
        # three significant digits; from 100 on, all digits before the point
        cells = [f"{number:.3g}" if abs(number) < 100 else f"{number:.0f}" for number in numbers] or [""] * 4
        table.add_row(feature.name, feature.unit, *cells, str(len(column_N) - len(defined)))
    return table


def _csv(files: Sequence[Path], features_N7: NDArray[np.float64]) -> str:
    """Return CSV text with one row per clip; undefined features are empty."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(["file", *NAMES])
    for file, features in zip(files, features_N7.tolist(), strict=True):
        writer.writerow([file, *("" if math.isnan(value) else value for value in features)])
    return content.getvalue()
