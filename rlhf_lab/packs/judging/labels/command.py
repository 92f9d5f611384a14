"""`label`: serve the page on which people compare responses, or write their labels to a file."""

from __future__ import annotations

import math
import re
import shlex
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_lab.config.schema import did_you_mean, paths_and_options
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import json_lines, make_dir, write_text
from rlhf_lab.core.types import Pair
from rlhf_lab.data.formats import from_pair
from rlhf_lab.data.reading import SUFFIXES
from rlhf_lab.packs.judging.labels.items import FIRST, TIE, draw
from rlhf_lab.packs.judging.labels.session import LabelSession
from rlhf_lab.packs.judging.labels.sources import JUDGEMENTS, read_source
from rlhf_lab.packs.judging.labels.store import LabelStore, StoredLabel

FORMS = PAIRS, LABELS = "pairs", "labels"


class Exported(NamedTuple):
    """Counts of an export: written rows, ties left out, and skips."""

    rows: int
    ties: int
    skips: int


def export(store: LabelStore, file: Path, form: str = PAIRS) -> Exported:
    """Write the labels of all annotators to a JSONL file, one row per label. Skips are not written.

    Args:
        form: `pairs`: {prompt, chosen, rejected, annotator, seconds, item} as messages, without ties, in TRL's
            conversational preference format, which keeps roles and tool calls; `labels`: {id, prompt_id, prompt, first,
            second, names, winner, annotator, seconds} as text, with ties, in the form of judgements.
    """
    labels = store.labels()
    rows = [_pair_row(label) for label in labels if label.winner != TIE] if form == PAIRS else map(_label_row, labels)
    rows = list(rows)
    make_dir(file.absolute().parent)
    write_text(file, json_lines(rows, ensure_ascii=False))
    return Exported(len(rows), len(labels) - len(rows), store.skips())


def _pair_row(label: StoredLabel) -> dict[str, Any]:
    item = label.item
    chosen, rejected = (item.first, item.second) if label.winner == FIRST else (item.second, item.first)
    (row,) = from_pair(Pair(item.prompt, chosen, rejected), "preference", conversational=True)
    return {**row, "annotator": label.annotator, "seconds": label.seconds, "item": item.id}


def _label_row(label: StoredLabel) -> dict[str, Any]:
    item = {name: getattr(label.item, name) for name in ("id", "prompt_id", "prompt", "first", "second", "names")}
    return {**item, "winner": label.winner, "annotator": label.annotator, "seconds": label.seconds}


USAGE = "label needs a run directory or a file: python -m rlhf_lab label outputs/runs/NAME [items=100 annotator=ana]"
EVALUATION = "evaluation.jsonl"
STORE_SUFFIX = ".labels.sqlite"
NUMBERS = {"items": (1, math.inf), "seed": (0, math.inf), "port": (1, 65535)}
AMOUNT = re.compile(r"\d{1,6}(\.\d{1,6})?")  # of money, such as 27.50; no sign and no exponent


@dataclass
class LabelOptions:
    """Options of the command line, described by `label --help`."""

    policies: str | None = None
    items: int | None = None
    seed: int | None = None
    annotator: str = "me"
    to: str | None = None
    port: int | None = None
    open: bool = False
    usd_per_hour: float = 0.0
    export: str | None = None
    format: str = PAIRS


def run(arguments: Sequence[str]) -> None:
    source, options = _parse(arguments)
    is_store = source.name.endswith(STORE_SUFFIX)
    if is_store and (options.policies or options.items or options.to or options.seed is not None):
        raise ConfigError(f"{source} is a label store with its own comparisons; leave out policies, items, seed and to")
    path = Path(options.to) if options.to else source if is_store else store_path(source)
    if options.export:
        file = Path(options.export)
        # an export must not overwrite the files that are being labelled
        read = (source, source / JUDGEMENTS, source / EVALUATION, path)
        if file.resolve() in [each.resolve() for each in read]:
            raise ConfigError(
                f"export={options.export} is the source or the label store, and would be overwritten; name another file"
            )
        rows, ties, skips = export(LabelStore(path), file, options.format)
        say(f"{file}: {rows} labels" + (f"; left out: {ties} ties, {skips} skips" if ties or skips else ""))
    else:
        _serve(source, path, options)


def store_path(source: Path) -> Path:
    """Return the label store of a source. It is next to the source, because a rebuilt run directory is emptied."""
    source = source.absolute()
    return source.with_name(f"{_stem(source)}{STORE_SUFFIX}")


def audit_store_path(run: Path) -> Path:
    """Return the label store in which a run asks people during training (`reward.audit.labels_from=human`)."""
    run = run.absolute()
    return run.with_name(f"{run.name}.audit{STORE_SUFFIX}")


def _stem(source: Path) -> str:
    suffix = next((suffix for suffix in (STORE_SUFFIX, *SUFFIXES) if source.name.endswith(suffix)), "")
    return source.name.removesuffix(suffix)


def _parse(arguments: Sequence[str]) -> tuple[Path, LabelOptions]:
    problems: list[str] = []
    sources, words = paths_and_options(arguments, "label", [field.name for field in fields(LabelOptions)], problems)
    if len(sources) != 1:
        raise ConfigError(USAGE)
    options = LabelOptions()
    for name, text in words.items():
        try:
            if hasattr(options, name):
                setattr(options, name, _value(name, text))
        except ValueError as problem:
            problems.append(f"{name}={text}: {problem}")
    if problems:
        raise ConfigError(problems)
    return Path(sources[0]), options


def _value(name: str, text: str) -> Any:
    """Parse the value of an option. Raises ValueError with the expected form."""
    if not text:
        raise ValueError("it has no value")
    if name in NUMBERS:
        low, high = NUMBERS[name]
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"expected a number from {low}" + (f" to {high}" if math.isfinite(high) else ""))
        return int(text)
    if name == "usd_per_hour":
        if not AMOUNT.fullmatch(text) or not float(text):
            raise ValueError("expected a number above 0, such as 30 or 27.50")
        return float(text)
    if name == "open":
        if text not in ("true", "false"):
            raise ValueError("expected true or false")
        return text == "true"
    if name == "export" and (not text.endswith(".jsonl") or Path(text).is_dir()):
        raise ValueError("expected a file whose name ends in .jsonl, such as pairs.jsonl")
    if name == "format" and text not in FORMS:
        raise ValueError(f"expected {' or '.join(FORMS)}{did_you_mean(text, list(FORMS))}")
    return text


def _serve(source: Path, path: Path, options: LabelOptions) -> None:
    from rlhf_lab.packs.judging.labels.server import serve  # imports optional libraries

    if source == path:
        # a run that asks people adds comparisons to its store while the page is open
        store = LabelStore(path)
        session = LabelSession(
            store, options.annotator, store.seed() or 0, "the judge", options.usd_per_hour, grows=True
        )
        say(f"{store.progress(options.annotator).left} comparisons wait for {options.annotator}")
    else:
        read = read_source(source, options.policies)
        store = LabelStore(path, create=True)
        # without an explicit seed, a store keeps the one it was started with
        seed = options.seed if options.seed is not None else store.seed() or 0
        selected = draw(read.items, seed, options.items)
        store.start(selected, seed)
        session = LabelSession(store, options.annotator, seed, read.judge, options.usd_per_hour)
        left_out = "".join(f"; left out: {count} {reason}" for reason, count in read.left_out.items())
        say(f"{len(selected)} of {len(read.items)} comparisons{left_out}")
    say(f"labels: {path}")

    def announce(url: str) -> None:
        say(f"open {url}")
        say("Press Ctrl-C to stop. Every answer is on disk before the page says saved; the same command resumes")
        if options.open:
            webbrowser.open(url)

    to = [f"to={options.to}"] if options.to else []
    words = ["python", "-m", "rlhf_lab", "label", str(source), *to, f"export={_stem(source.absolute())}.labels.jsonl"]
    export_command = shlex.join(words)
    serve(session, port=options.port, export_command=export_command, announce=announce)
    for line in session.summary():
        say(line)
    say(f"export: {export_command}")
    store.close()


def say(line: str) -> None:
    console.print(line)
