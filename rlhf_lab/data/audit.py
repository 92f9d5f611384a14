"""What is wrong with a corpus: every check is counted, says why it matters, and shows one example.

Read with the corpus' own load report, whose drops come first in the findings. Left out: near-duplicates beyond case,
spacing and punctuation (but for evaluation items, `against`), and anything that needs a model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

import numpy as np

from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.data import replies, transcript
from rlhf_lab.data.audit_report import DROPPED, SPLITS, AuditReport, Finding, render
from rlhf_lab.data.contamination import EvaluationItems

__all__ = ["AuditReport", "Finding", "audit", "render"]

Encode = Callable[[str], Sequence[int]]
# Control tokens of common chat templates (Llama, Gemma, Mistral, ChatML) as they appear in scraped text.
SPECIAL_TOKEN = re.compile(r"</?s>|<(?:bos|eos|pad|unk)>|<\|[a-z_]{2,30}\|>|<(?:start|end)_of_turn>|\[/?INST\]")
NOT_WORD = re.compile(r"\W+")
CONTRADICTS = "contradicts another pair"
HOLDS_ITEM = "holds an evaluation item"

# Checks on one pair: name → (why it matters, test given the pair and its prompt's oddities).
PAIR_CHECKS: dict[str, tuple[str, Callable[[Pair, Sequence[str]], bool]]] = {
    replies.EMPTY_CHOSEN: ("teaches the model to say nothing", lambda pair, _: not pair.chosen.strip()),
    replies.EMPTY_REJECTED: ("any reply beats it, nothing is learned", lambda pair, _: not pair.rejected.strip()),
    replies.IDENTICAL: ("there is nothing to prefer", lambda pair, _: pair.chosen == pair.rejected),
    replies.PREFIX: (
        "the pair differs in length only",
        lambda pair, _: replies.is_prefix(pair.chosen, pair.rejected),
    ),
    replies.NOT_ALTERNATING: (
        "chat templates refuse it or merge the turns",
        lambda _, oddities: replies.NOT_ALTERNATING in oddities,
    ),
    replies.NO_HUMAN_FIRST: ("chat templates refuse it", lambda _, oddities: replies.NO_HUMAN_FIRST in oddities),
    replies.MARKER_IN_BODY: (
        "the model learns to write the other side's turns",
        lambda pair, oddities: replies.MARKER_IN_BODY in oddities or any(map(replies.has_marker, _replies_of(pair))),
    ),
    "special token written out": (
        "a tokenizer turns it into a control token (double BOS, early EOS)",
        lambda pair, _: any(map(SPECIAL_TOKEN.search, (pair.prompt, *_replies_of(pair)))),
    ),
}
NEED_TWO_REPLIES = (replies.EMPTY_REJECTED, replies.IDENTICAL, replies.PREFIX, CONTRADICTS)
"""Checks that say nothing about demonstrations, whose rejected reply is empty."""


def audit(
    corpus: Corpus,
    *,
    encode: Encode | None = None,
    max_length: int | None = None,
    eos_id: int | None = None,
    bos_id: int | None = None,
    against: EvaluationItems | None = None,
) -> AuditReport:
    """Check both splits of a corpus. Demonstrations are not checked as pairs; `skipped` names those checks.

    Args:
        encode: full text (prompt, space, reply) → token ids, exactly as training encodes it.
        max_length: tokens a training sequence may have; with `encode`, what is longer counts as truncated.
        eos_id, bos_id: with `encode`, the ids that end and start a sequence.
        against: evaluation items that no training row may hold.
    """
    report = AuditReport(corpus.name)
    _add_load_report(report, corpus)
    for split in SPLITS:
        pairs: Sequence[Pair] = getattr(corpus, split)
        oddities = [replies.prompt_oddities(pair.prompt) for pair in pairs]
        for check, (why, test) in PAIR_CHECKS.items():
            if not corpus.preferences and check in NEED_TWO_REPLIES:
                continue
            if check == replies.EMPTY_CHOSEN and not _is_imitated(corpus):
                continue
            flagged = (pair for pair, odd in zip(pairs, oddities, strict=True) if test(pair, odd))
            _add_finding(report, check, split, "pairs", why, pairs, flagged)
        _check_duplicates(report, split, pairs, corpus.preferences)
        _describe_lengths(report, split, pairs, corpus.preferences)
    if not corpus.preferences:
        report.skipped |= dict.fromkeys(NEED_TWO_REPLIES, "preference pairs")
    if not _is_imitated(corpus):
        report.skipped[replies.EMPTY_CHOSEN] = "replies to imitate"
    _check_overlap(report, corpus)
    if against is not None:
        why = "the evaluation is trained on, so its numbers are too good"
        holding = (pair for pair in corpus.train if against.find_in(pair) is not None)
        _add_finding(report, HOLDS_ITEM, "train", "pairs", why, corpus.train, holding)
    if encode is None:
        report.skipped |= dict.fromkeys(TOKEN_CHECKS, "an encoder")
    else:
        for split in SPLITS:
            _check_tokens(report, split, getattr(corpus, split), encode, max_length, eos_id, bos_id)
    return report


def _is_imitated(corpus: Corpus) -> bool:
    """Whether every row has a chosen reply: prompts alone have none, and disliked replies have none beside them."""
    return corpus.preferences or not any(pair.rejected or not pair.chosen for pair in corpus.train)


def _replies_of(pair: Pair) -> tuple[str, ...]:
    """The replies there are: a demonstration has no rejected one."""
    return (pair.chosen, pair.rejected) if pair.rejected else (pair.chosen,)


def example_of(pair: Pair) -> str:
    """Where a pair stands in its source, and the end of its prompt."""
    prompt_end = " ".join(pair.prompt.removesuffix(transcript.REPLY).split())[-50:]
    source = pair.meta.get("source", "")
    return f"{source} …{prompt_end}" if source else f"…{prompt_end}"


def _add_finding(
    report: AuditReport, check: str, split: str, unit: str, why: str, units: Sequence[object], flagged: Iterable[Pair]
) -> None:
    """Add what a check found among `units`; the first of the `flagged` pairs is the example."""
    flagged = list(flagged)
    example = example_of(flagged[0]) if flagged else ""
    report.findings.append(Finding(check, split, len(flagged), len(units), unit, why, example))


def _add_load_report(report: AuditReport, corpus: Corpus) -> None:
    splits = [split for split in SPLITS if split in corpus.report]
    for split in splits:
        load_report = corpus.report[split]
        examples = getattr(load_report, "examples", {})  # reports of embedded worlds have no source to point into
        # What PAIR_CHECKS count is not shown a second time.
        noted = {reason: count for reason, count in load_report.noted.items() if reason not in PAIR_CHECKS}
        for prefix, why, of, counts in (
            (DROPPED, "not in the corpus", load_report.rows, load_report.dropped),
            ("noted", "kept; what loading saw", load_report.kept, noted),
        ):
            for reason, count in counts.items():
                example = examples.get(reason, "")
                report.findings.append(Finding(f"{prefix}: {reason}", split, count, of, "rows", why, example))
    for split, load_report in corpus.report.items():
        for name, value in load_report.statistics.items():
            report.statistics[f"{split}/{name}, all rows read"] = value


def _check_duplicates(report: AuditReport, split: str, pairs: Sequence[Pair], preferences: bool) -> None:
    seen: set[tuple[bytes, ...]] = set()
    duplicates, contradictions = [], []
    for pair in pairs:
        prompt, chosen, rejected = (_short_digest(text) for text in (pair.prompt, pair.chosen, pair.rejected))
        if (prompt, chosen, rejected) in seen:
            duplicates.append(pair)
        if (prompt, rejected, chosen) in seen and chosen != rejected:
            contradictions.append(pair)
        seen.add((prompt, chosen, rejected))
    why = "counts twice in training and in every interval"
    _add_finding(report, "duplicate pair", split, "pairs", why, pairs, duplicates)
    if preferences:
        _add_finding(report, CONTRADICTS, split, "pairs", "the labels cancel out", pairs, contradictions)
    counts = Counter(pair.prompt for pair in pairs)
    pair_of_prompt = {pair.prompt: pair for pair in pairs}
    repeated = (pair for prompt, pair in pair_of_prompt.items() if counts[prompt] > 1)
    why = "pairs of one prompt are not independent: cluster intervals by prompt"
    _add_finding(report, "prompt with several pairs", split, "prompts", why, list(counts), repeated)


def _short_digest(text: str) -> bytes:
    """Twelve bytes in place of a text, so that sets of millions of texts stay small."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def _words_only(text: str) -> str:
    return NOT_WORD.sub(" ", text.casefold()).strip()


def _first_human_turn(prompt: str) -> str:
    """The words of the first human turn; "" where no human speaks."""
    parts = transcript.TURN.split(prompt)  # text before the first turn, then speaker, body, speaker, body, …
    for speaker, body in zip(parts[1::2], parts[2::2], strict=True):
        if speaker == "Human":
            return _words_only(body)
    return ""


OVERLAPS: dict[str, tuple[str, Callable[[str], str]]] = {
    "test prompt in train": ("the test is memorised, not solved", lambda prompt: prompt),
    "test prompt in train but for case, spacing, punctuation": ("nearly memorised", _words_only),
    "test conversation opens like one in train": (
        "may be one conversation at two turns, its replies leak",
        _first_human_turn,
    ),
}


def _check_overlap(report: AuditReport, corpus: Corpus) -> None:
    prompts = {pair.prompt: pair for pair in corpus.test}
    for check, (why, key) in OVERLAPS.items():
        train = {_short_digest(key(prompt)) for prompt in corpus.prompts("train")}
        # Prompts without an opening (key "") would all match one another.
        leaked = (pair for prompt, pair in prompts.items() if key(prompt) and _short_digest(key(prompt)) in train)
        _add_finding(report, check, "test", "prompts", why, list(prompts), leaked)


def _describe_lengths(report: AuditReport, split: str, pairs: Sequence[Pair], preferences: bool) -> None:
    if not pairs:
        return
    if not preferences:
        report.statistics[f"{split}/median characters"] = float(np.median([len(pair.chosen) for pair in pairs]))
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
        for reply in _replies_of(pair):
            ids = encode(pair.prompt + transcript.after_colon(reply))
            lengths.append(len(ids))
            if max_length is not None and len(ids) > max_length:
                flagged[TRUNCATED].append(pair)
                if len(encode(pair.prompt)) >= max_length:
                    flagged[NO_ROOM].append(pair)
            if eos_id is not None and list(ids[:max_length][-1:]) != [eos_id]:
                flagged[MISSING_EOS].append(pair)
            if bos_id is not None and list(ids[:2]) == [bos_id, bos_id]:
                flagged[DOUBLE_BOS].append(pair)
    for check, why, argument, value in (
        (TRUNCATED, "the end of the reply is cut off", "max_length", max_length),
        (NO_ROOM, "nothing of the reply is left, unless the prompt is cut instead", "max_length", max_length),
        (MISSING_EOS, "the model does not learn to stop", "eos_id", eos_id),
        (DOUBLE_BOS, "not the input that the model was trained on", "bos_id", bos_id),
    ):
        if value is None:
            report.skipped[check] = argument
        else:
            _add_finding(report, check, split, "replies", why, lengths, flagged[check])
    if lengths:
        for name, percent in (("median", 50), ("95th percentile", 95), ("longest", 100)):
            report.statistics[f"{split}/{name} tokens"] = float(np.percentile(lengths, percent))
