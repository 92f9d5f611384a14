"""Check, before the first job of a study runs, that its data can measure its metrics. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.config import registry
from rlhf_lab.config.root import Config
from rlhf_lab.config.study_settings import Prediction, StudySettings
from rlhf_lab.core import measures
from rlhf_lab.core.metrics import scale_of


def problems(study: StudySettings, recipe: str | None, configs: Sequence[Config]) -> list[str]:
    """Return a problem if no job can measure the study's primary metric or a metric of its claims.

    Args:
        recipe: name of the study's recipe.
        configs: checked configs of its jobs.
    """
    # Metrics that decide nothing may be missing from the table, so only these are required.
    claimed = [claim.metric for claim in study.predicts]
    decisive = dict.fromkeys([study.metrics[0], *claimed])
    measured = set()
    for metric in (*study.metrics, *decisive):
        if any(_measures(config, metric) for config in configs):
            measured.add(metric)
    unmeasured = [metric for metric in decisive if metric not in measured]
    if not configs or not unmeasured:
        return []
    data_kinds = dict.fromkeys(registry.kind_of("data", config.data) for config in configs)
    data = ", ".join(data_kinds)
    missing = " and ".join(f"{metric} needs {measures.REQUIRES[metric].title}" for metric in unmeasured)
    remedies = []
    rest = [metric for metric in study.metrics if metric in measured]
    if rest:
        remedies.append(f"study.metrics=[{','.join(rest)}] study.predicts=[]")
    accepts_gold = any(config.algorithm.reward_use.measures_gold for config in configs)
    if measures.GOLD.name in unmeasured and accepts_gold:
        remedies.append("a reward model as the gold reward (needs.gold=DIR)")
    remedies.append("data of a simulated world, such as data=mini_hh")
    use = ", or ".join(remedies)
    return [f"{recipe or 'the study'} is decided by a metric that data={data} cannot measure: {missing}; use {use}"]


def published_problems(study: StudySettings) -> list[str]:
    """Return a problem for each claim whose published effect does not have the claim's direction."""
    return [problem for claim in study.predicts if (problem := _published_problem(claim))]


def _published_problem(claim: Prediction) -> str | None:
    """Return what is wrong with a published effect, which must have the claim's direction; None if nothing is."""
    if claim.published is None:
        return None
    is_ratio = scale_of(claim.metric) == "log"
    none = 1.0 if is_ratio else 0.0
    is_possible = claim.published > 0 or not is_ratio
    if is_possible and (claim.published > none if claim.direction == "higher" else claim.published < none):
        return None
    side = "above" if claim.direction == "higher" else "below"
    kind = "a ratio" if is_ratio else "a difference"
    return (
        f"predicts: published={claim.published:g} of {claim.metric} is not {claim.direction}; it is "
        f"{kind}, which must be "
        f"{'above 0 and ' if is_ratio else ''}{side} {none:g}"
    )


def _measures(config: Config, metric: str) -> bool:
    """Return True if a job's data, or the gold model or judge that it names, can measure a metric."""
    required = measures.REQUIRES.get(metric)
    if required is None or required in config.data.capabilities:
        return True
    return metric == measures.GOLD.name and bool(config.gold_role)
