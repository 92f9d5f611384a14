"""Labels of the levels of every study are noun phrases, so that they fit into "higher with LABEL than with LABEL"."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted([*ROOT.glob("recipes/study/*.yaml"), *ROOT.glob("rlhf_lab/packs/*/recipes/study/*.yaml")])
NOT_FIRST = {
    "with",
    "without",
    "then",
    "than",
    "using",
    "when",
    "if",
    "by",
    "from",
    "after",
    "before",
    "for",
    "to",
    "and",
    "or",
    "but",
    "as",
    "on",
    "in",
    "at",
}
"""Prepositions and conjunctions, after which "with" would be doubled or make no sense."""
PARTICIPLES = {"trained", "given", "made", "taken", "kept", "shown", "seen", "learned"}
"""Words after which a label would say what happened to something that it does not name."""
ADJECTIVES = ("al", "ic", "ed", "ive", "ous")
"""Endings of a label without a noun."""
DETERMINERS = {"a", "an", "the", "this", "that", "its", "all", "no", "one", "two", "three", "four", "eight"}


def problem(label: str) -> str:
    """Return why a label is no noun phrase; empty if it is one."""
    words = label.replace(",", "").split()
    first, last = words[0].lower(), words[-1]
    if first in NOT_FIRST:
        return f"begins with {first!r}"
    if first in PARTICIPLES:
        return f"begins with the participle {first!r}"
    if "then" in words or "than" in words:
        return "compares or continues; the sentence of a verdict does that"
    if len(words) <= 2 and first not in DETERMINERS and last.endswith(ADJECTIVES):
        return f"has no noun after {last!r}"
    return ""


def labels_of(path: Path) -> list[str]:
    """Return all labels of a study recipe, with a value in place of {}."""
    study = yaml.safe_load(path.read_text(encoding="utf-8")).get("study") or {}
    labels = []
    for names in (study.get("labels") or {}).values():
        labels += [names.replace("{}", "1")] if isinstance(names, str) else names.values()
    return labels


def test_studies_are_found():
    # fewer than 40 without the packs
    assert len(STUDIES) > 30 and sum(len(labels_of(path)) for path in STUDIES) > 100


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_labels_are_noun_phrases(path):
    problems = [f"{label!r} {problem(label)}" for label in labels_of(path) if problem(label)]
    assert not problems, f"{path.relative_to(ROOT)}: {'; '.join(problems)}; write a noun phrase, such as “flaky tools”"


@pytest.mark.parametrize(
    "label",
    [
        "then with tools busy one call in five",
        "trained with tools that always answer",
        "without helpfulness",
        "half agentic",
        "conversational",
        "learned",
    ],
)
def test_these_labels_are_refused(label):
    assert problem(label)
