"""The recipe's question answered in one sentence from the run's own numbers, with what it does not show in a second.

The settings of an algorithm name one of the answers that packs contribute. Where they name none, the run's first
scored numbers stand in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.core.packs import load, named
from rlhf_lab.results.answer_rewards import primary_numbers
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import SMOKE_CAVEAT
from rlhf_lab.training.settings import StageSettings

OTHER_RUN = {
    "attribute_rm": "rubric_rm",
    "dpo_fsdp": "dpo",
    "dpo_lora": "dpo",
    "pair_margins_2": "pair_margins",
    "ppo_ensemble": "ppo",
    "prm_mc": "prm",
    "prm_perturbed": "prm",
    "reward_ensemble": "reward_model",
    "reward_ensemble_bases": "reward_ensemble",
    "sft_fsdp": "sft",
    "sft_lora": "sft",
}
"""Recipes whose question compares two runs → the other one."""


@dataclass(frozen=True)
class Answer:
    """What a run says to its question: one sentence, and what limits it (may be empty)."""

    sentence: str
    caveat: str = ""


def answer(run: Run) -> Answer:
    """The answer of any run; one that did not complete, or lacks the numbers, says so instead."""
    if run.status != "completed":
        return Answer(f"No answer yet: this run is {run.status}.")
    config = run.settings
    kind = str((config.get("algorithm") or {}).get("kind", ""))
    settings = algorithm_settings(kind)
    reference = named("answers").get(settings.answer)
    sentence = load(reference)(run) if reference else None
    sentence = sentence or primary_numbers(run)
    if sentence is None:
        return Answer("No answer: this run holds no scored number.")
    return Answer(sentence, _write_caveat(run, settings, config))


def algorithm_settings(kind: str) -> type[StageSettings]:
    """The settings class of a run's algorithm; the general one where its plug-in is not installed any more."""
    if kind in registry.kinds("algorithm"):
        return registry.settings_class("algorithm", kind)
    return StageSettings


def _write_caveat(run: Run, settings: type[StageSettings], config: Mapping[str, Any]) -> str:
    """What the interval does not cover, and who judges."""
    if config.get("size") == "smoke":
        return SMOKE_CAVEAT
    limits = []
    if settings.makes_rows:
        limits.append("this is about the data that were made, not about what a model learns from them")
    elif not settings.makes_model:
        limits.append("each model comes from one training run, so training noise is not in the intervals")
    else:
        limits.append("one seed, so training noise is not in the interval")
    if run.has_gold:
        limits.append(f"gold is {run.gold_source}")
    elif any("proxy" in policy.metrics for policy in run.policies) and not run.has_verified_answers:
        limits.append("there is no gold here: the judge is the reward that training maximises")
    if partner := OTHER_RUN.get(run.recipe):
        limits.append(f"the question takes a second run: compare this one with that of +recipe={partner}")
    text = "; ".join(limits) + "."
    return text[0].upper() + text[1:]
