"""Answer to the recipe's question in one sentence from the run's own numbers, with its limits in a second sentence.

The settings of an algorithm name the function that writes the answer, which may be part of a pack. If they name none,
the answer quotes the first metrics of the run that have a better direction.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_lab.core.packs import load, named
from rlhf_lab.results.answer_rewards import primary_numbers
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import SMOKE_CAVEAT

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
    "sft_soup_2": "sft_soup_1",
}
"""Recipes whose question compares two runs → recipe of the other run."""


@dataclass(frozen=True)
class Conclusion:
    """Answer of a run to its question.

    Attributes:
        caveat: limits of the answer; may be empty.
    """

    sentence: str
    caveat: str = ""


def answer(run: StoredRun) -> Conclusion:
    """Return the answer of any run. If the run did not complete, or lacks the numbers, the sentence says so."""
    if run.status != "completed":
        return Conclusion(f"No answer yet: this run is {run.status}.")
    reference = named("answers").get(run.stage.evidence.answer)
    sentence = load(reference)(run) if reference else None
    # The run may lack the numbers of the answer that its algorithm names.
    sentence = sentence or primary_numbers(run)
    if sentence is None:
        return Conclusion("No answer: this run has no scored number.")
    return Conclusion(sentence, _write_caveat(run))


def _write_caveat(run: StoredRun) -> str:
    """Return what the interval does not cover, and where the scores come from."""
    if run.settings.get("size") == "smoke":
        return SMOKE_CAVEAT
    limits = []
    if run.stage.outputs.rows:
        limits.append("this describes the synthetic data, not what a model learns from them")
    elif not run.stage.outputs.model:
        # An attack on a function, for example, starts without any model; its manifest then names no input.
        if run.manifest.get("needs") != {}:
            limits.append("each model comes from one training run, so training noise is not in the intervals")
    else:
        limits.append("one seed, so training noise is not in the interval")
    if run.has_gold:
        limits.append(f"gold is {run.gold_source}")
    elif any("proxy" in policy.metrics for policy in run.policies) and not run.has_verified_answers:
        limits.append("there is no gold reward here: the scores are those of the reward that training maximises")
    if partner := OTHER_RUN.get(run.recipe):
        limits.append(f"the question needs a second run: compare this one with that of +recipe={partner}")
    text = "; ".join(limits)
    return f"{text[0].upper()}{text[1:]}." if text else ""
