"""From rows to a corpus: parse, count, split by prompt, fingerprint. Shared by every source that reads files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.data.facts import OTHER_FACTS, facts_of, with_facts
from rlhf_lab.data.file_settings import FileSettings
from rlhf_lab.data.pair_file import PairFile
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.replies import Split
from rlhf_lab.data.roles import missing_columns
from rlhf_lab.data.rows import BadRows, MissingColumns, Row, RowProblem
from rlhf_lab.data.shuffling import shuffled

Parse = Callable[[Mapping[str, Any]], Split]
Join = Callable[[Iterator[Row]], Iterator[Row]]
UNREADABLE = "unreadable row"
OVER_LIMIT = "over data.max_pairs"
IN_TRAIN = "prompt also in train"


@dataclass(slots=True)
class SourceReport(LoadReport):
    """A load report that knows where to look.

    Attributes:
        examples: drop reason or observation → the first row it was seen in, as "file:row".
    """

    examples: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class SplitReader:
    """Collects the pairs of one split and counts what happens to its rows.

    "longer wins" counts every readable pair, dropped or kept: chosen reply strictly longer, in characters of the
    stripped reply; a tie is not a win. Demonstrations have no rejected reply to compare with.
    """

    max_pairs: int
    preferences: bool = True
    pairs: list[Pair] | PairFile = field(default_factory=list)
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    report: SourceReport = field(default_factory=SourceReport)
    longer: int = 0
    ties: int = 0
    compared: int = 0

    @property
    def full(self) -> bool:
        return 0 < self.max_pairs <= len(self.pairs)

    def drop(self, reason: str, where: str) -> None:
        self.report.drop(reason)
        self.report.examples.setdefault(reason, where)

    def add(self, split: Split, where: str, *, also_in: set[bytes] | None = None) -> None:
        """Count one parsed row and keep its pair unless there is a reason not to."""
        self.report.rows += 1
        if self.preferences and (split.chosen or split.rejected):
            self.compared += 1
            self.longer += len(split.chosen) > len(split.rejected)
            self.ties += len(split.chosen) == len(split.rejected)
        if split.drop:
            self.drop(split.drop, where)
        elif also_in and _short_digest(split.prompt) in also_in:
            self.drop(IN_TRAIN, where)
        elif self.full:
            self.drop(OVER_LIMIT, where)
        else:
            self.report.kept += 1
            meta = {"source": where, **split.meta}
            self.pairs.append(Pair(split.prompt, split.chosen, split.rejected, meta))
            notes = list(split.notes)
            if split.facts and self.facts.setdefault(split.prompt, split.facts) != split.facts:
                notes.append(OTHER_FACTS)
            for note in notes:
                self.report.note(note)
                self.report.examples.setdefault(note, where)

    def finish(self) -> SourceReport:
        """Write the statistics into the report."""
        if self.compared:
            self.report.statistics.update(
                {"longer wins": self.longer / self.compared, "pairs compared": self.compared, "length ties": self.ties}
            )
        return self.report


def _short_digest(prompt: str) -> bytes:
    """Sixteen bytes in place of a prompt, so that a set of millions of them stays small."""
    return sha256(prompt.encode("utf-8", "surrogatepass")).digest()[:16]


def held_out(prompt: str, fraction: float) -> bool:
    """Whether a prompt belongs to the test split: its SHA-256 as a number in [0, 1) is below `fraction`."""
    digest = sha256(prompt.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < fraction * 2**64


def load_corpus(name: str, settings: FileSettings, parse: Parse, join: Join = iter) -> Corpus:
    """Read `settings.path` (and `test_path`) and split it into train and test.

    Without `test_path`, a prompt's hash decides its split, so a row keeps its split when others come or go; a row
    without a prompt counts as train. With it, test pairs whose prompt is in train are dropped and counted. Reading
    stops when both splits hold `max_pairs`.

    Args:
        parse: row → prompt and replies; raises RowProblem when a field is missing or of the wrong type.
        join: the rows of a file → rows for `parse`, where several of them make one pair; it is those that are counted.
    Returns:
        Corpus with reports "train", "test" and "all", their sum.
    Raises:
        DataError: a file is missing or damaged, more than `max_bad_rows` rows are bad, or a split is empty.
    """
    has_pairs = Capability.PAIRS in settings.capabilities
    train, test = (
        SplitReader(settings.max_pairs, has_pairs, PairFile() if settings.streaming else []) for _ in range(2)
    )
    if settings.test_path is None:

        def choose(split: Split) -> SplitReader:
            # Plain text to imitate has no prompt: there the text itself decides.
            return test if held_out(split.prompt or split.chosen, settings.test_fraction) else train

        _read_source(settings.path, settings, parse, choose, (train, test), join=join, unreadable=train)
    else:
        _read_source(settings.path, settings, parse, lambda _: train, (train,), join=join, unreadable=train)
        seen = {_short_digest(pair.prompt) for pair in train.pairs} - {_short_digest("")}
        _read_source(
            settings.test_path, settings, parse, lambda _: test, (test,), join=join, unreadable=test, also_in=seen
        )
    _check_not_empty(settings, train, test)
    facts = {**train.facts, **test.facts}
    return Corpus(
        name=name,
        train=train.pairs,
        test=test.pairs,
        fingerprint=with_facts(fingerprint(train.pairs, test.pairs), facts),
        preferences=Capability.PAIRS in settings.capabilities,
        facts=facts,
        report={"train": train.finish(), "test": test.finish(), "all": _sum_reports(train, test)},
    )


def _read_source(
    path: str,
    settings: FileSettings,
    parse: Parse,
    choose: Callable[[Split], SplitReader],
    readers: tuple[SplitReader, ...],
    *,
    join: Join,
    unreadable: SplitReader,
    also_in: set[bytes] | None = None,
) -> None:
    bad = BadRows(path, settings.max_bad_rows)
    rows = read_rows(path, bad, streaming=settings.streaming)
    if settings.shuffle_buffer:
        rows = shuffled(rows, settings.shuffle_buffer, settings.shuffle_seed)
    columns_read: list[str] = []  # of the first row that could be read
    for row in join(rows):
        try:
            split = _with_facts(parse(row.values), row, settings)
        except RowProblem as problem:
            missing = [name for name in columns_read if name not in row.values]
            if isinstance(problem, MissingColumns) and missing:
                # The settings fit other rows, so that this row is wrong and not they.
                bad.add(row.file, row.number, f"{missing_columns(missing, row.values)}, unlike rows before it")
            else:
                bad.add(row.file, row.number, str(problem))
            continue
        columns_read = columns_read or list(row.values)
        choose(split).add(split, _row_location(row), also_in=also_in)
        if settings.max_pairs and all(reader.full for reader in readers):
            break  # a hub data set may have millions of further rows
    bad.finish()
    # An unreadable row has no prompt that could choose a split; its split is the caller's decision.
    for file, number in bad.rows():
        unreadable.report.rows += 1
        unreadable.drop(UNREADABLE, f"{Path(file).name}:{number}")


def _with_facts(split: Split, row: Row, settings: FileSettings) -> Split:
    """A row with its further columns, unless its source has found them itself."""
    if split.drop or split.facts is not None:
        return split
    facts, remarks = facts_of(row.values, settings.text_columns(), settings.fact_columns)
    return replace(split, facts=facts, notes=[*split.notes, *remarks])


def _row_location(row: Row) -> str:
    """ "file:row", without the folders."""
    return f"{row.file.rpartition('/')[2]}:{row.number}"


def _check_not_empty(settings: FileSettings, train: SplitReader, test: SplitReader) -> None:
    test_path = settings.test_path or settings.path
    for name, reader, path in (("train", train, settings.path), ("test", test, test_path)):
        if reader.pairs or (name == "train" and settings.holds_out_all):
            continue
        reasons = ", ".join(f"{count} × {reason}" for reason, count in reader.report.dropped.items())
        if reasons:
            fix = "check that data.kind and the columns fit the file"
        elif settings.test_path is None and (train.pairs or test.pairs):
            count = len(train.pairs or test.pairs)
            raise DataError(
                f"{path}: none of the {count} usable row{'s' * (count != 1)} is left for {name}: rows are split by "
                f"prompt, and data.test_fraction={settings.test_fraction} holds about that fraction of the prompts "
                "out; write a file with more prompts, change data.test_fraction, or name the held-out rows with "
                "data.test_path=FILE"
            )
        else:
            fix = "the source has no rows"
        raise DataError(f"{path}: no pair is left for {name} of {reader.report.rows} rows ({reasons or 'none'}); {fix}")


def _sum_reports(*readers: SplitReader) -> SourceReport:
    """The reports of all splits added up."""
    total = SplitReader(max_pairs=0)
    for reader in readers:
        total.report.rows += reader.report.rows
        total.report.kept += reader.report.kept
        total.longer += reader.longer
        total.ties += reader.ties
        total.compared += reader.compared
        _add_counts(total.report.dropped, reader.report.dropped)
        _add_counts(total.report.noted, reader.report.noted)
        total.report.examples = {**reader.report.examples, **total.report.examples}  # the first one stays
    return total.finish()


def _add_counts(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        totals[reason] = totals.get(reason, 0) + count


def fingerprint(train: Sequence[Pair], test: Sequence[Pair]) -> str:
    """SHA-256 over the text of all pairs, split by split (hex).

    Every setting that matters (columns, test fraction, limits) acts through which pairs are in which split, and file
    names do not act at all, so the pairs are all that is hashed.
    """
    digest = sha256()
    for split in (train, test):
        digest.update(b"%d\n" % len(split))
        for pair in split:
            for text in (pair.prompt, pair.chosen, pair.rejected):
                content = text.encode("utf-8", "surrogatepass")
                # With its length before it, no text can run into the next one.
                digest.update(b"%d:" % len(content) + content)
    return digest.hexdigest()
