"""Scale of a number of a run: all that it depends on besides the policy.

Numbers under two rewards share a name, but no scale.
"""

from __future__ import annotations

import json
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.core.files import fingerprint, read_object
from rlhf_lab.core.metrics import metric as metric_of
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.training.settings import SOUP

OBSERVERS = ("monitor", "audit")
"""Settings in the section `reward` that observe a policy, and change no reward."""


def reward_inputs(run: StoredRun) -> dict[str, str]:
    """Return role → key of the models that the reward of a run reads."""
    terms = (run.settings.get("reward") or {}).get("terms") or {}
    known = registry.kinds("reward")  # the plug-in of a term may not be installed any more
    roles = {"reward"}
    for term in terms.values():
        if term.get("kind") in known:
            settings: Any = registry.settings_class("reward", term["kind"])
            roles.add(settings.needs_role)
    needs = run.manifest.get("needs") or {}
    return {role: str(need["key"]) for role, need in needs.items() if role in roles and need.get("key")}


def reference_inputs(run: StoredRun) -> dict[str, str]:
    """Return role → key of the models that form the reference policy of a run; a soup has two."""
    needs = run.manifest.get("needs") or {}
    roles = ("reference",) if needs.get("reference") else ("policy", SOUP)
    return {role: str(needs[role]["key"]) for role in roles if (needs.get(role) or {}).get("key")}


def runs_user_reward(run: StoredRun) -> bool:
    """Return True if a term of a run's reward is a user's function or a reward of a plug-in."""
    terms = (run.settings.get("reward") or {}).get("terms") or {}
    core = set(registry.kinds("reward")) - {"callable", *registry.plugged_in("reward")}
    return any(term.get("kind") not in core for term in terms.values())


def user_code(run: StoredRun) -> dict[str, str] | None:
    """Return definition → digest of users' files and plug-ins that a run used; None if it does not record its code."""
    digests = read_object(run.path / "code.json").get("definitions")
    if digests is None:
        return None
    return {label: digest for label, digest in digests.items() if not label.startswith("rlhf_lab/")}


def scale_identity(run: StoredRun, metric: str, *, scored: bool = False) -> str:
    """Return an identifier of the reward, source of gold and reference policy that a metric of a run depends on.

    Two runs are on one scale only if it is the same. It is empty if the metric depends on none of them, or if the run
    does not record them.

    Args:
        metric: name of the metric; "reward/TERM" depends on what `reward` depends on.
        scored: True if it is a number of the reward although its name does not say so.
    """
    relative_to = {*metric_of(metric).relative_to, *metric_of(metric.partition("/")[0]).relative_to}
    by_gold = "gold" in relative_to and run.has_gold
    parts: list[object] = []
    # without gold, the reward decides wins
    if scored or "reward" in relative_to or ("gold" in relative_to and not by_gold):
        reward = run.settings.get("reward") or {}
        settings = {name: value for name, value in reward.items() if name not in OBSERVERS}
        parts += [settings, reward_inputs(run)] if settings else []
        parts += [user_code(run)] if runs_user_reward(run) else []
    if by_gold:
        need = (run.manifest.get("needs") or {}).get("gold") or {}
        parts.append(str(need.get("key") or run.gold_source))
    if "reference" in relative_to and (reference := reference_inputs(run)):
        parts.append(reference)
    # sorted, because the order of terms changes no reward
    return fingerprint(json.dumps(parts, sort_keys=True))[:16] if parts else ""
