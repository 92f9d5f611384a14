"""Sentences of a study's page on the registration of its claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_lab.studies.correlations import correlation_in_words
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.rates import rate_in_words
from rlhf_lab.studies.registration import RegisteredClaim, kind_of
from rlhf_lab.studies.replication import list_in_words, seed_words
from rlhf_lab.studies.verdict import claim_in_words

SHOWN_DIGITS = 12
"""Number of digits of a hash on a page; study.json has all of them."""


def registration_lines(study: Study) -> list[str]:
    """Return when the claims of a study were registered and what was looked at; empty without registered claims."""
    registration = study.registration
    if not registration.entries:
        return []
    lines = [
        *_claim_lines("Claim", registration.claims),
        *_claim_lines("Correlation", registration.correlations),
        *_claim_lines("Rate", registration.rates),
        *(_withdrawn_line(study, entry) for entry in registration.withdrawn),
    ]
    return [*lines, *_look_lines(study)]


def _claim_lines(kind: str, claims: Sequence[RegisteredClaim]) -> list[str]:
    groups: dict[tuple[str, tuple[Any, ...]], list[tuple[int, RegisteredClaim]]] = {}
    for number, entry in enumerate(claims, start=1):
        groups.setdefault((entry.date, tuple(entry.seen)), []).append((number, entry))
    lines = []
    for (date, seen), together in groups.items():
        start = f"{_numbered(kind, together)} registered on {_when(date)}"
        if not seen:
            lines.append(f"{start}, before any result.")
            continue
        line = f"{start}, after the results of {seed_words(seen)} had been seen. Only other seeds count."
        # only claims of `predicts` form families
        line += " Holm's adjustment does not include earlier claims." if kind == "Claim" else ""
        lines.append(line)
    return lines


def _withdrawn_line(study: Study, entry: RegisteredClaim) -> str:
    start = f"Withdrawn on {_when(entry.withdrawn)}, after a look: "
    name = f"({entry.hash[:SHOWN_DIGITS]})"
    if kind_of(entry.meaning) == "correlation":
        return f"{start}{correlation_in_words(entry.meaning)} {name}."
    if kind_of(entry.meaning) == "rate":
        return f"{start}{rate_in_words(entry.meaning)} {name}."
    # A claim about one panel has a dict {key of `by`: its value}.
    by = next(iter((entry.meaning["by"] or {}).values()), None)
    words = claim_in_words(study, {**entry.meaning, "by": by})
    return f"{start}{words} {name}. It still counts in Holm's adjustment of the claims with which it was registered."


def registration_markdown(study: Study) -> str:
    lines = registration_lines(study)
    return "".join(f"- {line}\n" for line in lines) + "\n" if lines else ""


def _numbered(kind: str, claims: Sequence[tuple[int, RegisteredClaim]]) -> str:
    """Return claims of a kind with their hashes and a verb: "Claims 1 (3f9ac2d1…) and 2 (77ab…) were"."""
    names = [f"{number} ({entry.hash[:SHOWN_DIGITS]})" for number, entry in claims]
    return f"{kind}{'s' * (len(names) > 1)} {list_in_words(names)} {'were' if len(names) > 1 else 'was'}"


def _when(date: str) -> str:
    return date[:16].replace("T", " ")


def _look_lines(study: Study) -> list[str]:
    """Return a sentence on the looks at a study with a fixed list of seeds; empty for studies with `until=decided`."""
    looks = study.registration.looks
    if study.log is not None or not looks:
        return []
    counts = ", ".join(str(len(look.seeds)) for look in looks)
    seeds = ", ".join(map(str, study.registration.seen))
    line = f"Looked at n = {counts} seeds ({seeds}), first on {_when(looks[0].date)}."
    if len(looks) > 1:
        line += " The tests do not account for more than one look; those of study.until=decided do."
    return [line]
