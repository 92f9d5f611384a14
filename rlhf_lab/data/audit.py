"""Audit of a corpus: each check counts a kind of problem, states why it matters, and gives one example.

The results start with the rows that loading dropped, from the corpus' own load report. Not checked: near-duplicates
that differ by more than case, spacing and punctuation (except for evaluation items, see `against`), and anything that
needs the weights of a model.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.data import split_rows as replies
from rlhf_lab.data import transcript
from rlhf_lab.data.duplicates import EvaluationItems
from rlhf_lab.data.loading import short_digest

Encode = Callable[[str, str, int], tuple[Sequence[int], Sequence[int]]]
# Control tokens of common chat templates (Llama, Gemma, Mistral, ChatML), as they appear in scraped text.
SPECIAL_TOKEN = re.compile(r"</?s>|<(?:bos|eos|pad|unk)>|<\|[a-z_]{2,30}\|>|<(?:start|end)_of_turn>|\[/?INST\]")
NOT_WORD = re.compile(r"\W+")  # punctuation and spaces do not distinguish responses
CONTRADICTS = "contradicts another pair"
HOLDS_ITEM = "holds an evaluation item"

# Checks on one pair: name → (why it matters, test of the pair and the oddities of its prompt).
PAIR_CHECKS: dict[str, tuple[str, Callable[[Pair, Sequence[str]], bool]]] = {
    replies.EMPTY_CHOSEN: ("teaches the model to say nothing", lambda pair, _: not pair.chosen.strip()),
    replies.EMPTY_REJECTED: ("any response beats it, so nothing is learned", lambda pair, _: not pair.rejected.strip()),
    replies.IDENTICAL: ("there is nothing to prefer", lambda pair, _: pair.chosen == pair.rejected),
    replies.PREFIX: ("the pair differs in length only", lambda pair, _: replies.is_prefix(pair.chosen, pair.rejected)),
    replies.NOT_ALTERNATING: (
        "chat templates reject it or merge the turns",
        lambda _, oddities: replies.NOT_ALTERNATING in oddities,
    ),
    replies.NO_HUMAN_FIRST: ("chat templates reject it", lambda _, oddities: replies.NO_HUMAN_FIRST in oddities),
    replies.MARKER_IN_BODY: (
        "the model learns to write the other side's turns",
        lambda pair, oddities: replies.MARKER_IN_BODY in oddities or any(map(replies.has_marker, _responses_of(pair))),
    ),
    "special token written out": (
        "a tokenizer turns it into a control token (double BOS, early EOS)",
        lambda pair, _: any(map(SPECIAL_TOKEN.search, (pair.prompt, *_responses_of(pair)))),
    ),
}
NEED_TWO_REPLIES = (replies.EMPTY_REJECTED, replies.IDENTICAL, replies.PREFIX, CONTRADICTS)
"""Checks that do not apply to demonstrations, because their rejected response is empty."""


def audit(
    corpus: Corpus,
    *,
    encode: Encode | None = None,
    max_length: int | None = None,
    eos_id: int | None = None,
    bos_id: int | None = None,
    against: EvaluationItems | None = None,
) -> AuditReport:
    """Check both splits of a corpus. Checks of pairs are skipped for demonstrations and listed in `skipped`.

    Args:
        encode: (prompt, response, maximum tokens) → token ids of both as training sees them, such as `Encoder.row`.
        max_length: maximum number of tokens of a training sequence. With `encode`, longer ones count as truncated.
        eos_id: id that ends a sequence; used with `encode`.
        bos_id: id that starts a sequence; used with `encode`.
        against: evaluation items that no training row may contain.
    """
    # stages: load report, checks of pairs, overlap of the splits, evaluation items, checks of tokens
    report = AuditReport(corpus.name)
    _add_load_report(report, corpus)
    for split in SPLITS:
        pairs: Sequence[Pair] = getattr(corpus, split)
        # plain text has no prompt, and is trained on without a chat template
        oddities = [replies.prompt_oddities(pair.prompt) if pair.prompt else [] for pair in pairs]
        for check, (why, test) in PAIR_CHECKS.items():
            if not corpus.preferences and check in NEED_TWO_REPLIES:
                continue
            if check == replies.EMPTY_CHOSEN and not _is_imitated(corpus):
                continue
            with_oddities = zip(pairs, oddities, strict=True)
            flagged = [pair for pair, odd in with_oddities if test(pair, odd)]
            _add_result(report, check, split, "pairs", why, pairs, flagged)
        _check_duplicates(report, split, pairs, corpus.preferences)
        _describe_lengths(report, split, pairs, corpus.preferences)
    if not corpus.preferences:
        report.skipped |= dict.fromkeys(NEED_TWO_REPLIES, "preference pairs")
    if not _is_imitated(corpus):
        report.skipped[replies.EMPTY_CHOSEN] = "responses to imitate"
    _check_overlap(report, corpus)
    if against is not None:
        why = "the model trains on evaluation items, so its scores are too high"
        holding = (pair for pair in corpus.train if against.find_in(pair) is not None)
        _add_result(report, HOLDS_ITEM, "train", "pairs", why, corpus.train, holding)
    if encode is None:
        report.skipped |= dict.fromkeys(TOKEN_CHECKS, "a tokenizer: model=hf model.path=DIR")
    else:
        for split in SPLITS:
            _check_tokens(report, split, getattr(corpus, split), encode, max_length, eos_id, bos_id)
    return report


def _is_imitated(corpus: Corpus) -> bool:
    """Return True if every row has a chosen response. Prompts alone and rows of disliked responses have none."""
    return corpus.preferences or not any(pair.rejected or not pair.chosen for pair in corpus.train)


def _responses_of(pair: Pair) -> tuple[str, ...]:
    """Return the non-empty responses of a pair, or ("",) for a prompt without responses."""
    return tuple(response for response in (pair.chosen, pair.rejected) if response) or ("",)


def example_of(pair: Pair) -> str:
    """Return the location of a pair in its source, and the end of its prompt."""
    # the end of a prompt is its question, which identifies it better than its beginning
    words = pair.prompt.removesuffix(transcript.REPLY).split()
    prompt_end = " ".join(words)[-50:]
    source = pair.meta.get("source", "")
    return f"{source} …{prompt_end}" if source else f"…{prompt_end}"


def _add_result(
    report: AuditReport, check: str, split: str, unit: str, why: str, units: Sequence[object], flagged: Iterable[Pair]
) -> None:
    """Add the result of a check on `units`. The first of the `flagged` pairs is the example."""
    flagged = list(flagged)
    example = example_of(flagged[0]) if flagged else ""
    report.findings.append(AuditResult(check, split, len(flagged), len(units), unit, why, example))


def _add_load_report(report: AuditReport, corpus: Corpus) -> None:
    splits = [split for split in SPLITS if split in corpus.report]
    for split in splits:
        load_report = corpus.report[split]
        examples = getattr(load_report, "examples", {})  # reports of embedded worlds have no source to point into
        # Reasons that PAIR_CHECKS count as well are not listed a second time.
        noted = {reason: count for reason, count in load_report.noted.items() if reason not in PAIR_CHECKS}
        for prefix, why, of, counts in (
            (DROPPED, "not in the corpus", load_report.rows, load_report.dropped),
            ("noted", "in the corpus; seen while loading", load_report.kept, noted),
        ):
            for reason, count in counts.items():
                example = examples.get(reason, "")
                report.findings.append(AuditResult(f"{prefix}: {reason}", split, count, of, "rows", why, example))
    # also the reports "all" and those of the sources of a mix
    for split, load_report in corpus.report.items():
        for name, value in load_report.statistics.items():
            report.statistics[f"{split}/{name}, all rows read"] = value


def _check_duplicates(report: AuditReport, split: str, pairs: Sequence[Pair], preferences: bool) -> None:
    # the sets hold digests instead of texts: a corpus may have millions of pairs
    seen: set[tuple[bytes, ...]] = set()
    duplicates, contradictions = [], []
    for pair in pairs:
        prompt = short_digest(pair.prompt)
        chosen = short_digest(pair.chosen)
        rejected = short_digest(pair.rejected)
        if (prompt, chosen, rejected) in seen:
            duplicates.append(pair)
        # the same pair with the opposite label
        if (prompt, rejected, chosen) in seen and chosen != rejected:
            contradictions.append(pair)
        seen.add((prompt, chosen, rejected))
    why = "it counts twice in training and in every confidence interval"
    _add_result(report, "duplicate pair", split, "pairs", why, pairs, duplicates)
    if preferences:
        _add_result(report, CONTRADICTS, split, "pairs", "the labels cancel out", pairs, contradictions)
    counts = Counter(pair.prompt for pair in pairs if pair.prompt)
    pair_of_prompt = {pair.prompt: pair for pair in pairs}
    repeated = (pair for prompt, pair in pair_of_prompt.items() if counts[prompt] > 1)
    why = "pairs with the same prompt are not independent: cluster confidence intervals by prompt"
    _add_result(report, "prompt with several pairs", split, "prompts", why, list(counts), repeated)


def _words_only(text: str) -> str:
    return NOT_WORD.sub(" ", text.casefold()).strip()


def _first_human_turn(prompt: str) -> str:
    parts = transcript.TURN.split(prompt)  # text before the first turn, then speaker, body, speaker, body, …
    turns = zip(parts[1::2], parts[2::2], strict=True)
    return next((_words_only(body) for speaker, body in turns if speaker == "Human"), "")


OVERLAPS: dict[str, tuple[str, Callable[[str], str]]] = {
    "test prompt in train": ("the test is memorised, not solved", lambda prompt: prompt),
    "test prompt in train but for case, spacing, punctuation": ("nearly memorised", _words_only),
    "test conversation opens like one in train": (
        "may be the same conversation at two turns, which reveals its responses",
        _first_human_turn,
    ),
}


def _check_overlap(report: AuditReport, corpus: Corpus) -> None:
    prompts = {pair.prompt: pair for pair in corpus.test}
    for check, (why, key) in OVERLAPS.items():
        train = {short_digest(key(prompt)) for prompt in corpus.prompts("train")}
        # prompts without a human turn have the key "" and would all match one another
        leaked = [pair for prompt, pair in prompts.items() if key(prompt) and short_digest(key(prompt)) in train]
        _add_result(report, check, "test", "prompts", why, list(prompts), leaked)


def _describe_lengths(report: AuditReport, split: str, pairs: Sequence[Pair], preferences: bool) -> None:
    if not pairs:
        return
    if not preferences:
        lengths = [len(response) for pair in pairs for response in _responses_of(pair)]
        report.statistics[f"{split}/median characters"] = float(np.median(lengths))
        return
    chosen = np.array([len(pair.chosen) for pair in pairs])
    rejected = np.array([len(pair.rejected) for pair in pairs])
    report.statistics[f"{split}/longer wins"] = float(np.mean(chosen > rejected))
    report.statistics[f"{split}/length ties"] = int(np.sum(chosen == rejected))
    report.statistics[f"{split}/median chosen characters"] = float(np.median(chosen))
    report.statistics[f"{split}/median rejected characters"] = float(np.median(rejected))


TRUNCATED = "longer than max_length"
NO_ROOM = "prompt leaves no room for a reply"
MISSING_EOS = "no EOS at the end"
DOUBLE_BOS = "two BOS at the start"
TOKEN_CHECKS = (TRUNCATED, NO_ROOM, MISSING_EOS, DOUBLE_BOS)


def _check_tokens(
    report: AuditReport,
    split: str,
    pairs: Sequence[Pair],
    encode: Encode,
    max_length: int | None,
    eos_id: int | None,
    bos_id: int | None,
) -> None:
    flagged: dict[str, list[Pair]] = {check: [] for check in TOKEN_CHECKS}
    lengths = []
    for pair in pairs:
        for response in _responses_of(pair):
            prompt_ids, response_ids = encode(pair.prompt, response, sys.maxsize)
            length = len(prompt_ids) + (len(response_ids) if response else 0)
            lengths.append(length)
            if max_length is not None and length > max_length:
                flagged[TRUNCATED].append(pair)
                if len(prompt_ids) >= max_length:
                    flagged[NO_ROOM].append(pair)
                # the end after truncation, because training sees the truncated sequence
                _, response_ids = encode(pair.prompt, response, max_length)
            if response and eos_id is not None and list(response_ids[-1:]) != [eos_id]:
                flagged[MISSING_EOS].append(pair)
            if bos_id is not None and list(prompt_ids[:2]) == [bos_id, bos_id]:
                flagged[DOUBLE_BOS].append(pair)
    for check, why, argument, value in (
        (TRUNCATED, "the end of the response or the start of the prompt is cut off", "max_length", max_length),
        (NO_ROOM, "only the end of the prompt is kept, so that some of the response fits", "max_length", max_length),
        (MISSING_EOS, "the model does not learn to stop", "an EOS token", eos_id),
        (DOUBLE_BOS, "the model was not pretrained on such input", "a BOS token", bos_id),
    ):
        if value is None:
            report.skipped[check] = argument
        else:
            _add_result(report, check, split, "replies", why, lengths, flagged[check])
    if lengths:
        for name, percent in (("median", 50), ("95th percentile", 95), ("longest", 100)):
            report.statistics[f"{split}/{name} tokens"] = float(np.percentile(lengths, percent))


SPLITS = ("train", "test")
DROPPED = "dropped"
"""Prefix of checks that count rows dropped while loading, as in "dropped: empty chosen"."""
# statistics whose name matches are fractions and are printed as a percentage
SHARE = re.compile(r"wins|rate|share|accuracy|agrees")


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Result of one check on one split.

    Attributes:
        split: "train", "test" or "all".
        unit: kind of unit, such as "pairs" or "rows".
        why: effect of the problem on training or evaluation.
        example: location or text of the first flagged unit; "" if there is none.
    """

    check: str
    split: str
    count: int
    of: int
    unit: str
    why: str
    example: str = ""

    @property
    def share(self) -> float:
        """count / of; 0 for an empty split."""
        return self.count / self.of if self.of else 0.0


@dataclass(slots=True)
class AuditReport:
    """Result of `audit`.

    Attributes:
        findings: results of all checks that ran, including those that flagged nothing.
        statistics: "split/name" → value, such as lengths.
        skipped: check → what it needs to run.
    """

    name: str
    findings: list[AuditResult] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def count(self, check: str, split: str) -> int:
        """Return how many units `check` flagged in `split`. Raise KeyError if the check did not run on that split."""
        for result in self.findings:
            if (result.check, result.split) == (check, split):
                return result.count
        raise KeyError(f"{check!r} did not run on {split!r}")


def render(report: AuditReport) -> RenderableType:
    """Return the report for the console: failed checks, passed checks, skipped checks and statistics."""
    # dictionaries as ordered sets: a check has a result for each split
    failed = dict.fromkeys(result.check for result in report.findings if result.count)
    passed = dict.fromkeys(result.check for result in report.findings if result.check not in failed)
    # such problems are absent from the corpus only because loading dropped the rows: not the same as a clean source
    dropped = [check for check in passed if f"{DROPPED}: {check}" in failed]
    clean = [check for check in passed if check not in dropped]
    blocks: list[RenderableType] = [_findings_table(report, list(failed))]
    if clean:
        blocks.append(Text(f"Checked, none found: {', '.join(clean)}.", style="green"))
    if dropped:
        blocks.append(
            Text(f"Not in the corpus, because loading dropped such rows: {', '.join(dropped)}.", style="yellow")
        )
    for needs in dict.fromkeys(report.skipped.values()):
        checks = [check for check, needed in report.skipped.items() if needed == needs]
        blocks.append(Text(f"Not checked: {', '.join(checks)} (needs {needs}).", style="yellow"))
    return Group(*blocks, "", _statistics_table(report))


def _findings_table(report: AuditReport, checks: Iterable[str]) -> Table:
    table = Table(title=f"Audit of {report.name}", title_justify="left")
    table.add_column("found")
    for split in SPLITS:
        table.add_column(split, justify="right")
    for heading in ("why it matters", "first example"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        findings = {result.split: result for result in report.findings if result.check == check}
        cells = [_format_count(findings.get(split)) for split in SPLITS]
        first = next(result for result in findings.values() if result.count)
        # as `Text`, because examples may contain markup of rich, such as [INST]
        texts = (check, *cells, first.why, first.example)
        table.add_row(*map(Text, texts))
    return table


def _format_count(finding: AuditResult | None) -> str:
    if finding is None:
        return "–"
    count = f"{finding.count:,} of {finding.of:,} {finding.unit}"
    return f"{count}\n{finding.share:.2%}"


def _statistics_table(report: AuditReport) -> Table:
    table = Table(title="Statistics", title_justify="left")
    table.add_column("name")
    keys = [key.partition("/") for key in report.statistics]  # split/name
    splits = dict.fromkeys(split for split, _, _ in keys)
    for split in splits:
        table.add_column(split, justify="right")
    for name in dict.fromkeys(name for _, _, name in keys):
        values = [report.statistics.get(f"{split}/{name}") for split in splits]
        cells = ["–" if value is None else _format_statistic(name, value) for value in values]
        table.add_row(name, *cells)
    return table


def _format_statistic(name: str, value: float) -> str:
    if SHARE.search(name):
        return f"{value:.1%}"
    # integers are counts
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"
