"""Sub-command `features`: measures acoustic features of audio files, prints a summary and writes a table.

With `compare=true` it prints instead how NumPy and librosa measure these files, and how long they take.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from rlhf_lab.config.schema import did_you_mean
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import make_dir, write_text
from rlhf_lab.packs.speech.sound.audio import RATE, Library, read_audio
from rlhf_lab.packs.speech.sound.features import FEATURES, NAMES, PitchTracker, extract_many
from rlhf_lab.packs.speech.sound.library_comparison import compare_libraries, comparison_table
from rlhf_lab.packs.speech.sound.librosa_files import FORMATS, import_librosa

USAGE = "features takes WAV files or directories of WAV files: python -m rlhf_lab features DIR to=features.csv"
CHOICES = {
    "resample": ("true", "false"),
    "compare": ("true", "false"),
    "library": get_args(Library),
    "pitch": get_args(PitchTracker),
}
"""Option → its values, for options that have few."""


@dataclass
class FeaturesOptions:
    """Options of the sub-command, written after the files; `features --help` describes them."""

    to: str = ""
    rate: int = RATE
    resample: bool = False
    cache: str = ""
    max_bad_files: int = 0
    library: Library = "numpy"
    pitch: PitchTracker = "autocorrelation"
    compare: bool = False


def run(arguments: Sequence[str]) -> None:
    """Measure the files and print a summary.

    Raises ConfigError for an invalid command, and DataError that lists all files that cannot be measured.
    """
    # a word with an equals sign is a source if such a file exists
    sources = [Path(word) for word in arguments if "=" not in word or Path(word).exists()]
    options = _options([word for word in arguments if Path(word) not in sources])
    if not sources:
        raise ConfigError(USAGE)
    if options.library == "librosa" or options.pitch == "pyin" or options.compare:
        import_librosa()  # a missing library is one message, not one per file
    files = [file for source in sources for file in _audio_files(source, options.library)]
    if options.compare:
        _compare(files, options)
        return
    to = Path(options.to) if options.to else None
    cache = options.cache or (f"{to}.cache.jsonl" if to else None)
    unreadable: dict[int, str] = {}
    features_N7 = extract_many(
        files,
        rate=options.rate,
        resample=options.resample,
        progress="features",
        cache=cache,
        unreadable=unreadable,
        library=options.library,
        pitch=options.pitch,
    )
    _check_unreadable(unreadable, len(files), options.max_bad_files)
    files = [file for index, file in enumerate(files) if index not in unreadable]
    # skipped files appear neither in the summary nor in the table
    features_N7 = np.delete(features_N7, list(unreadable), axis=0)
    console.print(_summary(features_N7))
    if to:
        make_dir(to.parent)
        write_text(to, _csv(files, features_N7))
        console.print(f"{to}: {len(files)} clips", markup=False, soft_wrap=True)


def _check_unreadable(unreadable: Mapping[int, str], count: int, max_bad_files: int) -> None:
    """List the skipped files. Raises DataError if more than `max_bad_files` or all `count` files are unreadable."""
    if not unreadable:
        return
    listed = "\n".join(unreadable.values())
    if len(unreadable) <= max_bad_files and len(unreadable) < count:
        console.print(f"{len(unreadable)} of {count} files are skipped:\n{listed}", markup=False, soft_wrap=True)
        return
    # max_bad_files is only suggested if some files remain
    fix = "Repair or remove them"
    if len(unreadable) < count:
        fix += f", or skip them with max_bad_files={len(unreadable)}"
    raise DataError(f"{len(unreadable)} of {count} files cannot be measured:\n{listed}\n{fix}")


def _options(words: Sequence[str]) -> FeaturesOptions:
    """Parse the options. Raises ConfigError that lists all problems."""
    names = [field.name for field in fields(FeaturesOptions)]
    options = FeaturesOptions()
    problems = []
    for word in words:
        name, _, text = word.partition("=")
        if name not in names:
            problems.append(f"{name} is not an option of features{did_you_mean(name, names)}")
        elif name == "rate" and not (text.isdecimal() and int(text) > 0):
            problems.append(f"rate={text}: expected samples per second, such as {RATE}")
        elif name == "max_bad_files" and not text.isdecimal():
            problems.append(f"max_bad_files={text}: expected a count, 0 or more")
        elif name in CHOICES and text not in CHOICES[name]:
            problems.append(f"{name}={text}: expected {' or '.join(CHOICES[name])}")
        elif not text:
            problems.append(f"{name} has no value; write {name}=FILE")
        else:
            value: str | int | bool = text
            if name in ("rate", "max_bad_files"):
                value = int(text)
            elif name in ("resample", "compare"):
                value = text == "true"
            setattr(options, name, value)
    if options.compare and (options.to or options.cache):
        problems.append("compare=true prints a comparison of libraries and writes no features; leave out to and cache")
    if problems:
        raise ConfigError(problems)
    return options


def _compare(files: Sequence[Path], options: FeaturesOptions) -> None:
    """Print differences and times of both libraries on the files."""
    clips = [read_audio(file, options.rate, resample=options.resample, library=options.library) for file in files]
    console.print(comparison_table(compare_libraries(clips), clips))


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
    for file, features in zip(files, features_N7, strict=True):
        cells = ["" if np.isnan(value) else repr(float(value)) for value in features]
        writer.writerow([file, *cells])
    return content.getvalue()
