"""Prompts of a safety evaluation: labelled data, the world's own prompts, the shipped set, or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Corpus, HarmKnowing, SafetyPrompt
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows, SourceRow, describe
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.packs.judging.safety.settings import Safety

SHIPPED = Path(__file__).parent / "sets"
LABELS = {"unsafe": True, "safe": False}
"""Label of a prompt → True if it is harmful."""
OTHERS_CLASSIFY = "copyright"
"""Functional category of HarmBench whose success is a match with a protected text, which no classifier here finds."""


@dataclass(frozen=True)
class SafetySet:
    """Prompts of an evaluation.

    Attributes:
        harmful, safe: prompts by label.
        regressions: prompts that succeeded in an earlier run.
        demonstrations: (question, response) pairs of a harmful assistant, for many-shot prompts.
        origin: origin of the prompts, in words.
    """

    harmful: list[SafetyPrompt]
    safe: list[SafetyPrompt]
    regressions: list[SafetyPrompt]
    demonstrations: list[tuple[str, str]]
    origin: str


def safety_set(settings: Safety, corpus: Corpus, limit: int) -> SafetySet:
    """Return the prompts for the settings, at most `limit` per label. Raises DataError if a label has none."""
    prompts, origin = _prompts(settings, corpus)
    harmful = [prompt for prompt in prompts if prompt.harmful][:limit]
    safe = [prompt for prompt in prompts if not prompt.harmful][:limit]
    if not harmful or not safe:
        raise DataError(
            f"{origin}: {len(harmful)} unsafe and {len(safe)} safe prompts; both are needed, because attack success "
            "and over-refusal are measured together (algorithm.source=own has 40 of each)"
        )
    regressions = read_prompts(settings.regressions) if settings.regressions else []
    # demonstrations resemble the prompts: those of a world are in its own language
    if origin == WORLD and isinstance(corpus.oracle, HarmKnowing):
        demonstrations = corpus.oracle.safety_demonstrations("train")
    else:
        demonstrations = [(text_of(prompt), GIVES) for prompt in read_prompts(SHIPPED_PROMPTS) if prompt.harmful]
    return SafetySet(harmful, safe, regressions, demonstrations, origin)


GIVES = "Sure, here is how to do that. I will go through it step by step."
"""Response of an assistant in a demonstration with a shipped prompt: it complies, but contains nothing useful."""
WORLD = "held-out prompts of the world"
SHIPPED_PROMPTS = str(SHIPPED / "prompts.jsonl")


def _prompts(settings: Safety, corpus: Corpus) -> tuple[list[SafetyPrompt], str]:
    # order of precedence: a file, labels of the data, the world, the shipped set
    if settings.source == "file":
        prompts = read_prompts(settings.path)
        if any(not prompt.harmful for prompt in prompts) or not prompts:
            return prompts, settings.path
        # sets such as AdvBench contain harmful prompts only, and over-refusal needs safe ones
        safe = [prompt for prompt in read_prompts(SHIPPED_PROMPTS) if not prompt.harmful]
        return [*prompts, *safe], f"{settings.path} (all unsafe), with the safe prompts of the shipped set"
    if settings.source == "auto":
        labelled = _labelled(corpus)
        if labelled:
            left_out = len(_distinct_prompts(corpus)) - len(labelled)
            without_label = f" ({left_out} without one left out)" if left_out else ""
            return labelled, f"prompts of data={corpus.name} by their label{without_label}"
        if isinstance(corpus.oracle, HarmKnowing):
            return corpus.oracle.safety_prompts("test"), WORLD
        # a data set without responses is meant to be used: shipped prompts would pass for its result
        if not any(pair.chosen or pair.rejected for pair in (*corpus.train, *corpus.test)):
            raise DataError(_no_label(corpus))
    return read_prompts(SHIPPED_PROMPTS), f"the shipped prompts, none of data={corpus.name}"


def _no_label(corpus: Corpus) -> str:
    prompts = _distinct_prompts(corpus)
    labels = [row["label"] for prompt in prompts if "label" in (row := corpus.metadata.get(prompt, {}))]
    found = "they have no column label"
    if labels:
        found = f"their column label is {describe(labels[0])}, … and never safe or unsafe"
    return (
        f"data={corpus.name}: it is unknown which of its {len(prompts)} prompts are harmful, as {found}; add a column "
        "label with safe or unsafe to data.path (data.columns has to keep it), or use the shipped prompts with "
        "algorithm.source=own"
    )


def _distinct_prompts(corpus: Corpus) -> list[str]:
    """Return the prompts of both splits: an evaluation does not train, so none has to be held out."""
    return list(dict.fromkeys([*corpus.prompts("train"), *corpus.prompts("test")]))


def _labelled(corpus: Corpus) -> list[SafetyPrompt]:
    rows = {prompt: corpus.metadata.get(prompt, {}) for prompt in _distinct_prompts(corpus)}
    known = {prompt: row for prompt, row in rows.items() if row.get("label") in LABELS}
    return [SafetyPrompt(prompt, LABELS[row["label"]], _category(row)) for prompt, row in known.items()]


def _category(row: Mapping[str, Any]) -> str:
    # XSTest calls its categories `type`
    return str(row.get("category") or row.get("type") or "")


def read_prompts(path: str) -> list[SafetyPrompt]:
    """Read the prompts of a file. An empty file is valid: the regression cases of a run without any success.

    The columns are `prompt` and `label`, or those of a public set of harmful behaviours: AdvBench (`goal`),
    JailbreakBench (`Goal`, `Category`) or HarmBench (`Behavior`, `SemanticCategory`, `ContextString`). HarmBench's
    copyright behaviours are left out. Raises DataError with file, row and column if a row is invalid.
    """
    bad = BadRows(path)
    rows = [row for row in read_rows(path, bad) if row.values.get("FunctionalCategory") != OTHERS_CLASSIFY]
    prompts = [_read_prompt(row) for row in rows]
    bad.finish()
    return prompts


def _read_prompt(row: SourceRow) -> SafetyPrompt:
    values = _own_columns(row.values)
    prompt = values.get("prompt")
    label = values.get("label")
    if not isinstance(prompt, str) or not prompt.strip():
        raise DataError(f"{row.file}, row {row.number}: prompt is {describe(prompt)}; expected text")
    if label not in LABELS:
        raise DataError(f"{row.file}, row {row.number}: label is {describe(label)}; expected safe or unsafe")
    base, undisguised = (str(values.get(name) or "") for name in ("base", "undisguised"))
    return SafetyPrompt(as_prompt(prompt), LABELS[label], _category(values), base, undisguised)


def _own_columns(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of a public set of harmful behaviours with the columns of this module; other rows as they are."""
    if "prompt" in values:
        return values
    # JailbreakBench also has a column Behavior, which is only a short name of the goal
    if goal := values.get("goal") or values.get("Goal"):
        return {"prompt": goal, "label": "unsafe", "category": values.get("Category")}
    if behavior := values.get("Behavior"):
        context = values.get("ContextString")
        # HarmBench puts the context of a behaviour before it, with this separator
        prompt = f"{context}\n\n---\n\n{behavior}" if context else behavior
        return {"prompt": prompt, "label": "unsafe", "category": values.get("SemanticCategory")}
    return values


def text_of(prompt: SafetyPrompt) -> str:
    """Return the user's text in a prompt of one turn, or the transcript of a longer one."""
    return prompt.prompt.removeprefix("\n\nHuman: ").removesuffix("\n\nAssistant:")
