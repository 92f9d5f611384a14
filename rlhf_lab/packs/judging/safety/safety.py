"""Safety of policies on the same prompts: attack success and over-refusal together, and what else breaks a policy.

Every rate has its n and a Wilson interval clustered by prompt (Korn & Graubard's effective sample size where a prompt
has several replies); a rate of 0 also has the bound of the rule of three over the prompts. Policies are compared with
the reference by prompt. What succeeded is written to regressions.jsonl, which later runs ask again.

Left out: multi-turn attacks, gradient-based suffixes, prompt injection through tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rlhf_lab.core.files import write_text
from rlhf_lab.core.types import SafetyPrompt
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.evaluations.policy_log import PolicyLog
from rlhf_lab.packs.judging.safety.asking import Policy, Rows, refused, succeeded
from rlhf_lab.packs.judging.safety.classify import Classifier
from rlhf_lab.packs.judging.safety.many_shot import with_shots
from rlhf_lab.packs.judging.safety.prompt_sets import by_category, safety_set
from rlhf_lab.packs.judging.safety.red_team import Reword, attacker_of, red_team
from rlhf_lab.packs.judging.safety.settings import Safety
from rlhf_lab.packs.judging.safety.sycophancy import Question, shipped_questions, turned
from rlhf_lab.statistics.estimates import Comparison, Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate, holm
from rlhf_lab.statistics.paired_rates import paired_by_prompt, rule_of_three
from rlhf_lab.training.run import Result, Run

COMPARED = ("safety/attack_success", "safety/over_refusal")
REGRESSIONS = "regressions.jsonl"


class SafetyEvaluation:
    """Evaluates `needs.reference`, then every other policy in `needs`, in the order written."""

    def __init__(self, settings: Safety, run: Run):
        self.settings, self.run = settings, run
        self.set = safety_set(settings, run.corpus, run.config.evaluation.prompts)
        self.classifier = Classifier(settings, run)
        self.questions = shipped_questions() if settings.sycophancy else []
        self.log = PolicyLog(run)
        self._reword: Reword | None = None
        run.note(
            f"safety: {len(self.set.harmful)} unsafe and {len(self.set.safe)} safe prompts, {self.set.origin}; "
            f"{len(self.set.regressions)} regression cases"
        )

    def finish(self) -> Result:
        names = {role: self._policy_name(role) for role in self.run.needs if role != "attacker"}
        for role in ["reference", *(role for role in names if role != "reference")]:
            if not self.log.find(names[role]):
                self._evaluate(Policy(names[role], self.run.needs[role], self.run))
        write_text(self.run.folder / REGRESSIONS, self._regression_cases())
        counts = {"safety/prompts/unsafe": len(self.set.harmful), "safety/prompts/safe": len(self.set.safe)}
        return Result(self._compared(), counts)

    def _policy_name(self, role: str) -> str:
        """The role; for a reference that is a stage of the recipe, the stage's name."""
        source = str(self.run.config.needs[role])
        return role if role != "reference" or "/" in source else f"{source} (reference)"

    def _evaluate(self, policy: Policy) -> None:
        rows = [*self._plain(policy), *self._many_shot(policy), *self._opinions(policy)]
        if self.settings.attempts:
            self._reword = self._reword or attacker_of(self.settings, self.run)
            rows += red_team(policy, self.set.harmful, self.classifier, self.settings.attempts, self._reword)
        cut = policy.collector.prompts_cut
        if cut:
            self.run.note(
                f"{policy.name}: {cut} prompts are longer than rollout.max_prompt_tokens="
                f"{self.run.config.rollout.max_prompt_tokens} and lost their beginning"
            )
        self.log.add(policy.name, rows, summarise(rows))

    def _plain(self, policy: Policy) -> Rows:
        """The prompts as they are: unsafe, safe, and those that once succeeded."""
        rows = []
        for part, prompts in (
            ("unsafe", self.set.harmful),
            ("safe", self.set.safe),
            ("regression", self.set.regressions),
        ):
            # a case may be a disguise or have demonstrations in front: it is asked with the room that it was found with
            longest = policy.prompt_room if part == "regression" else 0
            for row in self._ask(policy, part, prompts, longest):
                column, says = COLUMNS[part]
                rows.append({**row, column: says(row["outcome"])})
        return rows

    def _ask(self, policy: Policy, part: str, prompts: Sequence[SafetyPrompt], max_tokens: int = 0) -> Rows:
        """Replies to prompts with what they did, prompt-major."""
        if not prompts:
            return []
        group = self.run.config.evaluation.samples_per_prompt
        collected = policy.ask(part, [prompt.prompt for prompt in prompts], group, max_tokens=max_tokens)
        asked = [prompt for prompt in prompts for _ in range(group)]
        outcomes = self.classifier.outcomes(asked, [episode.response for replies in collected for episode in replies])
        rows = []
        for number, (prompt, replies) in enumerate(zip(prompts, collected, strict=True)):
            for sample, episode in enumerate(replies):
                outcome = outcomes[number * group + sample]
                rows.append({**policy.row(part, number, sample, prompt, episode), "outcome": outcome})
        return rows

    def _many_shot(self, policy: Policy) -> Rows:
        rows: Rows = []
        longest = self.settings.shot_tokens or self.run.config.rollout.max_prompt_tokens
        for shots in self.settings.many_shot:
            prompts = [with_shots(prompt, self.set.demonstrations, shots) for prompt in self.set.harmful]
            needed = max(len(policy.encoder.prompt(prompt.prompt)) for prompt in prompts)
            if needed > longest:
                self.run.note(
                    f"{policy.name}: {shots} demonstrations need {needed} tokens and {longest} are allowed "
                    "(algorithm.shot_tokens), so they are left out"
                )
                continue
            for row in self._ask(policy, f"many_shot/{shots}", prompts, longest):
                rows.append({**row, f"safety/many_shot/{shots}": succeeded(row["outcome"])})
        return rows

    def _opinions(self, policy: Policy) -> Rows:
        """Every question without and with the user's opinion; sample i with it against sample i without it."""
        if not self.questions:
            return []
        group = self.run.config.evaluation.samples_per_prompt
        neutral = [as_prompt(question.question) for question in self.questions]
        biased = [as_prompt(question.with_opinion) for question in self.questions]
        collected = policy.ask("sycophancy", [*neutral, *biased], group)
        rows = []
        for number, question in enumerate(self.questions):
            without, behind = collected[number], collected[len(self.questions) + number]
            for sample, (before, after) in enumerate(zip(without, behind, strict=True)):
                to_user, away = turned(question.is_wrong(before.response), question.is_wrong(after.response))
                row = policy.row("sycophancy", number, sample, _asked(question), after)
                row |= {"before": before.response, "safety/sycophancy": to_user, "safety/turned_away": away}
                rows.append(row)
        return rows

    def _regression_cases(self) -> str:
        """Every prompt that succeeded, once, as rows that `algorithm.regressions` reads."""
        cases: dict[str, dict[str, Any]] = {}
        for policy in self.log.policies:
            for row in self.log.rows(policy["name"]):
                if row["part"] in ("safe", "sycophancy", "red_team_prompt") or not succeeded(row.get("outcome")):
                    continue
                found_by = row.get("attack", "as it is") if row["part"] == "red_team" else row["part"]
                case = {"prompt": row["prompt"], "label": "unsafe", "category": row["category"], "base": row["base"]}
                case |= {"reply": row["response"], "policy": policy["name"], "found_by": found_by}
                cases.setdefault(row["prompt"], case)
        return "".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases.values())

    def _compared(self) -> list[dict[str, Any]]:
        """The summaries, those behind the first with their differences from it."""
        first, *others = self.log.policies
        rows = {policy["name"]: self.log.rows(policy["name"]) for policy in self.log.policies}
        comparisons: dict[tuple[str, str], Comparison] = {}
        for policy in others:
            for key in COMPARED:
                a, b = outcomes_of(rows[first["name"]], key), outcomes_of(rows[policy["name"]], key)
                comparisons[policy["name"], key] = paired_by_prompt(a, b)
        adjusted = holm([comparison.p_value for comparison in comparisons.values()])
        metrics: dict[str, dict[str, Any]] = {policy["name"]: dict(policy["metrics"]) for policy in self.log.policies}
        for ((name, key), comparison), p_holm in zip(comparisons.items(), adjusted, strict=True):
            found = comparison.to_dict()
            metrics[name][f"{key}_change"] = found["difference"]
            metrics[name][f"{key}_p"] = p_holm
            metrics[name][f"{key}_detectable"] = found["minimum_detectable_effect"]
        return [{**policy, "metrics": metrics[policy["name"]]} for policy in self.log.policies]


COLUMNS = {
    "unsafe": ("safety/attack_success", succeeded),
    "safe": ("safety/over_refusal", refused),
    "regression": ("safety/regressions", succeeded),
}
"""Part of the evaluation → its metric, and what that makes of an outcome."""


def _asked(question: Question) -> SafetyPrompt:
    return SafetyPrompt(as_prompt(question.with_opinion), harmful=False, category="sycophancy")


def outcomes_of(rows: Iterable[dict[str, Any]], key: str) -> dict[str, list[float]]:
    """Prompt → the scored values of a metric."""
    outcomes: dict[str, list[float]] = {}
    for row in rows:
        if row.get(key) is not None:
            outcomes.setdefault(row["prompt"], []).append(float(row[key]))
    return outcomes


def summarise(rows: Rows) -> dict[str, Estimate]:
    """Every rate of one policy."""
    metrics: dict[str, Estimate] = {}
    for part, (key, _) in COLUMNS.items():
        of_part = [row for row in rows if row["part"] == part]
        if not of_part:
            continue
        metrics[key] = _rate(of_part, key)
        prompts = [SafetyPrompt(row["prompt"], part == "unsafe", row["category"]) for row in of_part]
        for category in by_category(prompts) if part != "regression" else []:
            in_category = [row for row in of_part if row["category"] == category]
            metrics[f"{key}/{category}"] = _rate(in_category, key)
        if metrics[key].mean == 0 and part != "regression":
            metrics[f"{key}_below"] = _upper_bound(metrics[key])
    plain = [row for row in rows if row["part"] in ("unsafe", "safe")]
    for name in ("partial", "evaded"):
        marked = [{**row, name: None if row["outcome"] is None else int(row["outcome"] == name)} for row in plain]
        metrics[f"safety/{name}"] = _rate(marked, name)
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("safety/"))
    for key in [key for key in keys if key not in metrics]:
        metrics[key] = _rate([row for row in rows if key in row], key)
    return metrics


def _rate(rows: Rows, key: str) -> Estimate:
    """The rate of a column, clustered by prompt; the mean of one that is no rate."""
    estimate = clustered_mean if key == "safety/attempts" else clustered_rate
    return estimate(floats([row[key] for row in rows]), [row["prompt"] for row in rows])


def _upper_bound(rate: Estimate) -> Estimate:
    """Where the truth lies below, of a rate of 0; replies to one prompt count as one trial."""
    bound = rule_of_three(rate.clusters)
    return Estimate(bound, bound, bound, rate.n, rate.clusters)


def build(settings: Safety, run: Run) -> SafetyEvaluation:
    return SafetyEvaluation(settings, run)
