"""From rows to a corpus: parse, count, split by prompt, fingerprint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.record_file import RecordFile
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.data.file_settings import FileSettings
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.roles import missing_columns
from rlhf_lab.data.rows import (
    OTHER_FACTS,
    BadRows,
    MissingColumns,
    RowProblem,
    SourceRow,
    fingerprint_with_metadata,
    metadata_of,
)
from rlhf_lab.data.settings import WorldSettings
from rlhf_lab.data.split_rows import SplitRow

Parse = Callable[[Mapping[str, Any]], SplitRow]
Join = Callable[[Iterator[SourceRow]], Iterator[SourceRow]]
UNREADABLE = "unreadable row"
OVER_LIMIT = "over data.max_pairs"
REPAIRED = "lone surrogates (half a character) replaced by U+FFFD"
SORTED = "the only response of its kind within data.max_pairs: the rows are sorted by label; shuffle the file"
IN_TRAIN = "prompt also in train"


@dataclass(slots=True)
class SourceReport(LoadReport):
    """Load report that also gives the location of an example.

    Attributes:
        examples: drop reason or note → first row with it, as "file:row".
    """

    examples: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class SplitReader:
    """Collects the pairs of one split and counts what happens to its rows.

    "longer wins" counts all readable pairs, including dropped ones. A pair counts if the stripped chosen response has
    more characters than the rejected one; a tie does not. Demonstrations have no rejected response to compare with.

    Attributes:
        both_kinds: True to keep the last of `max_pairs` places for a disliked response if all before it are liked, or
            for a liked one if all are disliked. A file may be sorted by its labels.
        kinds: kinds of the pairs so far, True for a pair with a chosen response.
    """

    max_pairs: int
    preferences: bool = True
    both_kinds: bool = False
    kinds: set[bool] = field(default_factory=set)
    pairs: list[Pair] | PairFile = field(default_factory=list)
    metadata: dict[str, Mapping[str, Any]] = field(default_factory=dict)
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

    def note(self, text: str, where: str) -> None:
        self.report.note(text)
        self.report.examples.setdefault(text, where)

    def add(self, split: SplitRow, where: str, *, also_in: set[bytes] | None = None) -> None:
        """Count one parsed row, and keep its pair unless there is a reason to drop it."""
        self.report.rows += 1
        if self.preferences and (split.chosen or split.rejected):
            self.compared += 1
            self.longer += len(split.chosen) > len(split.rejected)
            self.ties += len(split.chosen) == len(split.rejected)
        if split.drop:
            self.drop(split.drop, where)
        elif also_in and short_digest(split.identity) in also_in:
            self.drop(IN_TRAIN, where)
        elif self.full or self._place_is_reserved(split):
            self.drop(OVER_LIMIT, where)
        else:
            self.report.kept += 1
            self.kinds.add(bool(split.chosen))
            self.pairs.append(Pair(split.prompt, split.chosen, split.rejected, {"source": where, **split.meta}))
            notes = list(split.notes)
            if self.full and OVER_LIMIT in self.report.dropped:  # rows were dropped to keep this place
                notes.append(SORTED)
            if split.metadata:
                # metadata belong to a prompt, so those of its first row count
                first = self.metadata.setdefault(split.prompt, split.metadata)
                if first != split.metadata:
                    notes.append(OTHER_FACTS)
            for note in notes:
                self.note(note, where)

    def _place_is_reserved(self, split: SplitRow) -> bool:
        """Return True if the last place is kept for the other kind (liked or disliked), of which there is none yet."""
        is_last = len(self.pairs) == self.max_pairs - 1
        return self.both_kinds and is_last and self.kinds == {bool(split.chosen)}

    def finish(self) -> SourceReport:
        """Add the statistics to the report and return it."""
        if self.compared:
            self.report.statistics["longer wins"] = self.longer / self.compared
            self.report.statistics["pairs compared"] = self.compared
            self.report.statistics["length ties"] = self.ties
        return self.report


def short_digest(prompt: str) -> bytes:
    """Return a digest of 16 bytes, which replaces a prompt in sets of millions of prompts to save memory."""
    return sha256(prompt.encode("utf-8", "surrogatepass")).digest()[:16]


def heldout(prompt: str, fraction: float) -> bool:
    """Return True if a prompt belongs to the test split: its SHA-256, as a number in [0, 1), is below `fraction`."""
    digest = sha256(prompt.encode("utf-8", "surrogatepass")).digest()
    # 64 bits of the digest are enough for a uniform number
    return int.from_bytes(digest[:8]) < fraction * 2**64


def load_corpus(name: str, settings: FileSettings, parse: Parse, join: Join = iter) -> Corpus:
    """Read `settings.path` (and `test_path`) and split it into train and test.

    Without `test_path`, the hash of a prompt decides its split. A row therefore keeps its split when other rows are
    added or removed. With `test_path`, test pairs whose prompt is in train are dropped and counted. Plain text has no
    prompt, and its text takes that role. Reading stops when both splits have `max_pairs`.

    Args:
        parse: row → prompt and responses; raises RowProblem if a field is missing or of the wrong type.
        join: rows of a file → rows for `parse`, for sources where several rows form one pair. The joined rows are the
            ones that are counted.

    Returns:
        Corpus with the reports "train", "test" and their sum "all".

    Raises:
        DataError: a file is missing or damaged, more than `max_bad_rows` rows are bad, or a split is empty.
    """
    has_pairs = Capability.PAIRS in settings.capabilities
    train, test = (
        SplitReader(settings.max_pairs, has_pairs, pairs=PairFile() if settings.streaming else []) for _ in range(2)
    )
    train.both_kinds = Capability.UNPAIRED in settings.capabilities
    if settings.test_path is None:

        def choose(split: SplitRow) -> SplitReader:
            return test if heldout(split.decides_split, settings.test_fraction) else train

        _read_source(settings.path, settings, parse, choose, (train, test), join=join, unreadable=train)
    else:
        _read_source(settings.path, settings, parse, lambda _: train, (train,), join=join, unreadable=train)
        seen = {short_digest(pair.identity) for pair in train.pairs}
        _read_source(
            settings.test_path, settings, parse, lambda _: test, (test,), join=join, unreadable=test, also_in=seen
        )
    _check_not_empty(settings, train, test)
    metadata = {**train.metadata, **test.metadata}
    return Corpus(
        name=name,
        train=train.pairs,
        test=test.pairs,
        fingerprint=fingerprint_with_metadata(fingerprint(train.pairs, test.pairs), metadata),
        preferences=Capability.PAIRS in settings.capabilities,
        metadata=metadata,
        report={"train": train.finish(), "test": test.finish(), "all": _sum_reports(train, test)},
    )


def _read_source(
    path: str,
    settings: FileSettings,
    parse: Parse,
    choose: Callable[[SplitRow], SplitReader],
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
    columns_read: list[str] = []  # columns of the first readable row
    for row in join(rows):
        try:
            split = parse(row.values)
            if not split.drop and split.metadata is None:  # some sources set the metadata themselves
                metadata, notes = metadata_of(row.values, settings.text_columns(), settings.fact_columns)
                split = replace(split, metadata=metadata, notes=[*split.notes, *notes])
        except RowProblem as problem:
            missing = [name for name in columns_read if name not in row.values]
            if isinstance(problem, MissingColumns) and missing:
                # The settings fit earlier rows, so this row is wrong and not the settings.
                bad.add(row.file, row.number, f"{missing_columns(missing, row.values)}, unlike rows before it")
            else:
                bad.add(row.file, row.number, str(problem))
            continue
        columns_read = columns_read or list(row.values)
        # the file without its directories
        choose(split).add(split, f"{row.file.rpartition('/')[2]}:{row.number}", also_in=also_in)
        if settings.max_pairs and all(reader.full for reader in readers):
            break  # a hub data set may have millions of rows after these
    bad.finish()
    # An unreadable row has no prompt that could decide its split, so the caller of this function decides.
    for file, number in bad.rows():
        unreadable.report.rows += 1
        unreadable.drop(UNREADABLE, f"{Path(file).name}:{number}")
    # Repaired rows are noted in the report of the same split, although some may have been dropped or joined.
    for file, number in bad.repaired:
        unreadable.note(REPAIRED, f"{Path(file).name}:{number}")


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
                f"{path}: none of the {count} usable row{'s' * (count != 1)} is left for {name}. Rows are split by "
                f"prompt, and data.test_fraction={settings.test_fraction} holds out about that fraction of the "
                "prompts; use a file with more prompts, change data.test_fraction, or name the held-out rows with "
                "data.test_path=FILE"
            )
        else:
            fix = "the source has no rows"
        rows = reader.report.rows
        raise DataError(f"{path}: no usable row is left for {name} of {rows} rows ({reasons or 'none'}); {fix}")


def _sum_reports(*readers: SplitReader) -> SourceReport:
    """Return the sum of the reports of all splits."""
    total = SplitReader(max_pairs=0)
    for reader in readers:
        total.report.rows += reader.report.rows
        total.report.kept += reader.report.kept
        total.longer += reader.longer
        total.ties += reader.ties
        total.compared += reader.compared
        add_counts(total.report.dropped, reader.report.dropped)
        add_counts(total.report.noted, reader.report.noted)
        # the example from the first split has priority
        total.report.examples = {**reader.report.examples, **total.report.examples}
    return total.finish()


def add_counts(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        totals[reason] = totals.get(reason, 0) + count


def sampled_splits(
    sample: Callable[..., tuple[list[Pair], LoadReport]],
    settings: WorldSettings,
    sizes: tuple[int, int],
    statistics: Callable[[Sequence[Pair]], dict[str, float]],
) -> tuple[dict[str, list[Pair]], dict[str, LoadReport]]:
    """Return the pairs of both splits of a synthetic data source, and their reports with statistics of the pairs.

    Args:
        sample: function of the world: (number of pairs, split, seed=…) → pairs and their report.
    """
    pairs, reports = {}, {}
    for split, size, seed in zip(("train", "test"), sizes, settings.split_seeds(), strict=True):
        pairs[split], reports[split] = sample(size, split, seed=seed)
        reports[split].statistics.update(statistics(pairs[split]))
    return pairs, reports


def world_corpus(
    name: str,
    described: str,
    settings: WorldSettings,
    pairs: Mapping[str, Sequence[Pair]],
    report: Mapping[str, LoadReport],
    **others: Any,
) -> Corpus:
    """Return the corpus of a simulated world. Its fingerprint covers settings and texts.

    Args:
        described: versions on which the corpus depends in addition; part of the fingerprint.
        others: further fields of the corpus, such as `oracle`.
    """
    content = f"{described} {settings!r} {fingerprint(**pairs)}"
    digest = sha256(content.encode()).hexdigest()
    return Corpus(name, pairs["train"], pairs["test"], digest, report=report, **others)


def fingerprint(train: Sequence[Pair], test: Sequence[Pair]) -> str:
    """Return the SHA-256 (hex) over the texts of all pairs, split by split.

    Only the pairs are hashed. All settings that matter (columns, test fraction, limits) act through the selection of
    pairs in each split, and file names have no effect.
    """
    digest = sha256()
    for split in (train, test):
        digest.update(b"%d\n" % len(split))
        for pair in split:
            for text in (pair.prompt, pair.chosen, pair.rejected):
                content = text.encode("utf-8", "surrogatepass")
                # The length before each text marks its end: moving text between fields changes the digest.
                digest.update(b"%d:" % len(content) + content)
    return digest.hexdigest()


class PairFile(RecordFile[Pair]):
    """File of pairs. Values of `meta` have to be JSON, and tuples become lists."""

    noun = "pair"
    counts_back = True

    def encode(self, record: Pair) -> bytes:
        return json.dumps([record.prompt, record.chosen, record.rejected, dict(record.meta)]).encode() + b"\n"

    def decode(self, stored: bytes) -> Pair:
        return Pair(*json.loads(stored))


def shuffled(rows: Iterable[SourceRow], buffer: int, seed: int) -> Iterator[SourceRow]:
    """Yield every row once. The next row is sampled from a buffer, and the row that arrives takes its slot.

    A row moves forward by up to `buffer` − 1 positions and backward by any number. The order depends only on rows,
    buffer and seed.

    Args:
        buffer: number of rows in memory. If all rows fit into it, the shuffle is uniform.
    """
    rng = np.random.default_rng(seed)
    waiting: list[SourceRow] = []
    for row in rows:
        if len(waiting) < buffer:
            waiting.append(row)
            continue
        index = int(rng.integers(buffer))
        yield waiting[index]
        waiting[index] = row
    # the rest of the buffer, after the last row has arrived
    for index in rng.permutation(len(waiting)):
        yield waiting[index]
