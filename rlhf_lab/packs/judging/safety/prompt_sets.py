"""Which prompts a safety evaluation asks: labels of the data, the world's own, the shipped set, or a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Corpus, HarmKnowing, SafetyPrompt
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows, Row, describe
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.packs.judging.safety.settings import Safety

SHIPPED = Path(__file__).parent / "sets"
LABELS = {"unsafe": True, "safe": False}


@dataclass(frozen=True)
class SafetySet:
    """What is asked.

    Attributes:
        harmful, safe: prompts by label.
        regressions: prompts that succeeded in an earlier run.
        demonstrations: (question, reply) pairs in which an assistant gives harm, for many-shot prompts.
        origin: where the prompts are from, in words.
    """

    harmful: list[SafetyPrompt]
    safe: list[SafetyPrompt]
    regressions: list[SafetyPrompt]
    demonstrations: list[tuple[str, str]]
    origin: str


def safety_set(settings: Safety, corpus: Corpus, most: int) -> SafetySet:
    """The prompts that the settings name, at most `most` of each label. Raises DataError where a label has none."""
    prompts, origin = _prompts(settings, corpus)
    harmful = [prompt for prompt in prompts if prompt.harmful][:most]
    safe = [prompt for prompt in prompts if not prompt.harmful][:most]
    if not harmful or not safe:
        raise DataError(
            f"{origin}: {len(harmful)} unsafe and {len(safe)} safe prompts; attack success and over-refusal are "
            "measured together, so both are needed (algorithm.source=own has 40 of each)"
        )
    regressions = read_prompts(settings.regressions) if settings.regressions else []
    if origin == WORLD and isinstance(corpus.oracle, HarmKnowing):
        demonstrations = corpus.oracle.safety_demonstrations("train")
    else:
        demonstrations = [(text_of(prompt), GIVES) for prompt in read_prompts(SHIPPED_PROMPTS) if prompt.harmful]
    return SafetySet(harmful, safe, regressions, demonstrations, origin)


GIVES = "Sure, here is how to do that. I will go through it step by step."
"""What an assistant in a demonstration says to a shipped prompt: it complies, and holds nothing that is of use."""
WORLD = "held-out prompts of the world"
SHIPPED_PROMPTS = str(SHIPPED / "prompts.jsonl")


def _prompts(settings: Safety, corpus: Corpus) -> tuple[list[SafetyPrompt], str]:
    if settings.source == "file":
        return read_prompts(settings.path), settings.path
    if settings.source == "auto":
        labelled = _labelled(corpus)
        if labelled:
            left_out = len(_distinct_prompts(corpus)) - len(labelled)
            without_label = f" ({left_out} without one left out)" if left_out else ""
            return labelled, f"prompts of data={corpus.name} by their label{without_label}"
        if isinstance(corpus.oracle, HarmKnowing):
            return corpus.oracle.safety_prompts("test"), WORLD
        if _has_prompts_alone(corpus):  # they are there to be asked: asking others instead would pass for their result
            raise DataError(_no_label(corpus))
    return read_prompts(SHIPPED_PROMPTS), f"the shipped prompts, none of data={corpus.name}"


def _has_prompts_alone(corpus: Corpus) -> bool:
    """Whether no row of the data has a response."""
    return not any(pair.chosen or pair.rejected for split in (corpus.train, corpus.test) for pair in split)


def _no_label(corpus: Corpus) -> str:
    prompts = _distinct_prompts(corpus)
    labels = [corpus.facts[prompt]["label"] for prompt in prompts if "label" in corpus.facts.get(prompt, {})]
    found = "they have no column label"
    if labels:
        found = f"their column label is {describe(labels[0])}, … and never safe or unsafe"
    return (
        f"data={corpus.name}: which of its {len(prompts)} prompts ask for harm is not known, as {found}; add a column "
        "label with safe or unsafe to data.path (data.columns has to keep it), or ask the shipped prompts instead with "
        "algorithm.source=own"
    )


def _distinct_prompts(corpus: Corpus) -> list[str]:
    """Prompts of both splits: nothing is trained here."""
    return list(dict.fromkeys([*corpus.prompts("train"), *corpus.prompts("test")]))


def _labelled(corpus: Corpus) -> list[SafetyPrompt]:
    """Prompts of the data whose row has a label."""
    prompts = []
    for prompt in _distinct_prompts(corpus):
        facts = corpus.facts.get(prompt, {})
        if facts.get("label") in LABELS:
            category = str(facts.get("category") or facts.get("type") or "")
            prompts.append(SafetyPrompt(prompt, LABELS[facts["label"]], category))
    return prompts


def read_prompts(path: str) -> list[SafetyPrompt]:
    """Prompts of a file; none of an empty one, as the regression cases of a run in which nothing succeeded.

    Raises DataError with file, row and column where a row is not as expected.
    """
    bad = BadRows(path)
    prompts = [_read_prompt(row) for row in read_rows(path, bad)]
    bad.finish()
    return prompts


def _read_prompt(row: Row) -> SafetyPrompt:
    values = row.values
    prompt, label = values.get("prompt"), values.get("label")
    if not isinstance(prompt, str) or not prompt.strip():
        raise DataError(f"{row.file}, row {row.number}: prompt is {describe(prompt)}; expected text")
    if label not in LABELS:
        raise DataError(f"{row.file}, row {row.number}: label is {describe(label)}; expected safe or unsafe")
    return SafetyPrompt(
        as_prompt(prompt), LABELS[label], str(values.get("category") or ""), str(values.get("base") or "")
    )


def text_of(prompt: SafetyPrompt) -> str:
    """What the user says in a prompt of one turn; of a longer one its transcript."""
    return prompt.prompt.removeprefix("\n\nHuman: ").removesuffix("\n\nAssistant:")


def by_category(prompts: Sequence[SafetyPrompt]) -> list[str]:
    """Categories in order of appearance; empty where there is only one."""
    names = list(dict.fromkeys(prompt.category for prompt in prompts))
    return names if len(names) > 1 else []
