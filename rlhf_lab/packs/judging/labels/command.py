"""`label`: serve the page on which people compare responses, or write their labels to a file."""

from __future__ import annotations

import re
import shlex
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_lab.config.schema import did_you_mean
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

PAIRS, LABELS = "pairs", "labels"


class Exported(NamedTuple):
    """Counts of an export: written rows, ties left out, and skips."""

    rows: int
    ties: int
    skips: int


def export(store: LabelStore, file: Path, form: str = PAIRS) -> Exported:
    """Write the labels of all annotators to a JSONL file, one row per label. Skips are not written.

    Args:
        form: `pairs`: {prompt, chosen, rejected, annotator, seconds, item} as messages, without ties;
            `labels`: {id, prompt_id, prompt, first, second, names, winner, annotator, seconds} as text, with ties.
    """
    labels = store.labels()
    rows = FORMS[form](labels)
    make_dir(file.absolute().parent)
    write_text(file, json_lines(rows, ensure_ascii=False))
    # only `pairs` leaves labels out, namely ties
    left_out = len(labels) - len(rows)
    return Exported(len(rows), left_out, store.skips())


def pair_rows(labels: Sequence[StoredLabel]) -> list[dict[str, Any]]:
    """Return labels with a winner in TRL's conversational preference format, which keeps roles and tool calls."""
    return [_pair_row(label) for label in labels if label.winner != TIE]


def _pair_row(label: StoredLabel) -> dict[str, Any]:
    item = label.item
    chosen, rejected = item.first, item.second
    if label.winner != FIRST:
        chosen, rejected = rejected, chosen
    (row,) = from_pair(Pair(item.prompt, chosen, rejected), "preference", conversational=True)
    return {**row, "annotator": label.annotator, "seconds": label.seconds, "item": item.id}


def label_rows(labels: Sequence[StoredLabel]) -> list[dict[str, Any]]:
    """Return every label in the form of judgements."""
    return [
        {
            "id": label.item.id,
            "prompt_id": label.item.prompt_id,
            "prompt": label.item.prompt,
            "first": label.item.first,
            "second": label.item.second,
            "names": list(label.item.names),
            "winner": label.winner,
            "annotator": label.annotator,
            "seconds": label.seconds,
        }
        for label in labels
    ]


FORMS: dict[str, Callable[[Sequence[StoredLabel]], list[dict[str, Any]]]] = {PAIRS: pair_rows, LABELS: label_rows}


USAGE = "label needs a run directory or a file: python -m rlhf_lab label outputs/runs/NAME [items=100 annotator=ana]"
EVALUATION = "evaluation.jsonl"
STORE_SUFFIX = ".labels.sqlite"
PORTS = range(1, 65536)
NUMBER = re.compile(r"\d{1,6}(\.\d{1,6})?")  # an amount of money, such as 27.50; no sign and no exponent


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
        _export(LabelStore(path), file, options.format)
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
    """Return the name of a source without the suffix of its format."""
    for suffix in (STORE_SUFFIX, *SUFFIXES):
        if source.name.endswith(suffix):
            return source.name.removesuffix(suffix)
    return source.name


def _parse(arguments: Sequence[str]) -> tuple[Path, LabelOptions]:
    """Parse the source and the options. Raises ConfigError with all problems."""
    # the name of a file may contain an equals sign
    sources = [word for word in arguments if "=" not in word or Path(word).exists()]
    if len(sources) != 1:
        raise ConfigError(USAGE)
    names = [field.name for field in fields(LabelOptions)]
    options = LabelOptions()
    problems = []
    for word in arguments:
        if word in sources:
            continue
        name, _, text = word.partition("=")
        if name not in names:
            problems.append(f"{name} is not an option of label{did_you_mean(name, names)}")
            continue
        try:
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
    if name in ("items", "seed", "port"):
        number = int(text) if text.isdecimal() else -1
        if name == "items" and number < 1:
            raise ValueError("expected a number from 1")
        if name == "seed" and number < 0:
            raise ValueError("expected a number from 0")
        if name == "port" and number not in PORTS:
            raise ValueError("expected a number from 1 to 65535")
        return number
    if name == "usd_per_hour":
        usd = float(text) if NUMBER.fullmatch(text) else 0.0
        if not usd:
            raise ValueError("expected a number above 0, such as 30 or 27.50")
        return usd
    if name == "open":
        if text not in ("true", "false"):
            raise ValueError("expected true or false")
        return text == "true"
    if name == "export" and (not text.endswith(".jsonl") or Path(text).is_dir()):
        raise ValueError("expected a file whose name ends in .jsonl, such as pairs.jsonl")
    if name == "format" and text not in FORMS:
        raise ValueError(f"expected {' or '.join(FORMS)}{did_you_mean(text, list(FORMS))}")
    return text


def _export(store: LabelStore, file: Path, form: str) -> None:
    written = export(store, file, form)
    left_out = f"; left out: {written.ties} ties, {written.skips} skips" if written.ties or written.skips else ""
    console.print(f"{file}: {written.rows} labels{left_out}", markup=False, soft_wrap=True)


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

    # the command that exports these labels, for the page and the console
    words = ["python", "-m", "rlhf_lab", "label", str(source)]
    if options.to:
        words.append(f"to={options.to}")
    words.append(f"export={_stem(source.absolute())}.labels.jsonl")
    export_command = shlex.join(words)
    serve(session, port=options.port, export_command=export_command, announce=announce)
    for line in session.summary():
        say(line)
    say(f"export: {export_command}")
    store.close()


def say(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)
