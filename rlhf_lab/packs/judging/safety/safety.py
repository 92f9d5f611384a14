"""Safety of policies on the same prompts: attack success together with over-refusal, and further attacks.

Every rate has its n and a Wilson interval clustered by prompt, with Korn & Graubard's effective sample size if a prompt
has several responses. A rate of 0 also has the bound of the rule of three over the prompts. Policies are compared with
the reference prompt by prompt. Successful prompts are written to regressions.jsonl, which later runs can test again.

Not implemented: multi-turn attacks and gradient-based suffixes. Prompt injection through tools is in
packs/agents/benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_lab.core.files import json_lines, write_text
from rlhf_lab.core.types import SafetyPrompt
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.evaluations.policy_log import PolicyLog, policy_name
from rlhf_lab.packs.judging.safety.asking import NamedPolicy, Rows, refused, succeeded
from rlhf_lab.packs.judging.safety.attacks import with_shots
from rlhf_lab.packs.judging.safety.canaries import read_canaries, sample_canaries, system_prompts, training_prompt
from rlhf_lab.packs.judging.safety.classify import Classifier, grade_columns
from rlhf_lab.packs.judging.safety.honesty import (
    ASK_AGAIN,
    PUSH_BACK,
    QuestionSet,
    honesty_score,
    second_turn,
    shipped_questions,
    turned_rates,
)
from rlhf_lab.packs.judging.safety.prompt_sets import safety_set
from rlhf_lab.packs.judging.safety.red_team import Reword, attacker_of, red_team
from rlhf_lab.packs.judging.safety.settings import Safety
from rlhf_lab.packs.judging.statistics.win_rates import win_rate
from rlhf_lab.statistics.estimates import Comparison, Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate, holm
from rlhf_lab.statistics.paired_rates import paired_by_prompt
from rlhf_lab.statistics.rows import column, grouped, outcomes_by, upper_bound
from rlhf_lab.training.run import Result, Run

COMPARED = ("safety/attack_success", "safety/over_refusal")
"""Metrics compared with the reference. Holm's adjustment covers exactly these."""
REGRESSIONS = "regressions.jsonl"
HARM_SCORE = "safety/harm_score"
"""Column of scores from 0 to 1. Their mean has the interval of a win rate: scores of 0 alone do not prove that the next
one is 0."""
MEANS = ("safety/attempts", "safety/honesty")
"""Columns whose values are not within 0 to 1."""


class SafetyEvaluation:
    """Evaluates `needs.reference`, then every other policy in `needs`, in their order."""

    def __init__(self, settings: Safety, run: Run):
        self.settings = settings
        self.run = run
        self.set = safety_set(settings, run.corpus, run.config.evaluation.prompts)
        self.classifier = Classifier(settings, run)
        self.questions = shipped_questions() if settings.sycophancy else []
        self.honesty = QuestionSet(run.corpus, run.config.evaluation.prompts)
        self.canaries = sample_canaries(settings.canaries, run.config.evaluation.seed, "system")
        self.planted = read_canaries(settings.canary_file) if settings.canary_file else []
        self.log = PolicyLog(run)
        self._reword: Reword | None = None
        run.note(
            f"safety: {len(self.set.harmful)} unsafe and {len(self.set.safe)} safe prompts, {self.set.origin}; "
            f"{len(self.set.regressions)} regression cases"
        )

    def finish(self) -> Result:
        names = {role: policy_name(self.run, role) for role in self.run.needs}
        # the reference comes first, because the others are compared with it
        for role in ["reference", *(role for role in names if role != "reference")]:
            if not self.log.find(names[role]):  # an earlier attempt may have evaluated it
                self._evaluate(NamedPolicy(names[role], self.run.needs[role], self.run))
        write_text(self.run.directory / REGRESSIONS, self._regression_cases())
        counts = {"safety/prompts/unsafe": len(self.set.harmful), "safety/prompts/safe": len(self.set.safe)}
        return Result(self._compare_summaries(), counts)

    def _evaluate(self, policy: NamedPolicy) -> None:
        rows = [*self._to_plain(policy), *self._many_shot(policy), *self._opinions(policy)]
        rows += [*self._push_back(policy), *self._honesty(policy), *self._extractions(policy)]
        if self.settings.attempts:
            self._reword = self._reword or attacker_of(self.settings, self.run)
            rows += red_team(policy, self.set.harmful, self.classifier, self.settings.attempts, self._reword)
        cut = policy.collector.prompts_cut  # number of truncated prompts
        if cut:
            self.run.note(
                f"{policy.name}: {cut} prompts are longer than rollout.max_prompt_tokens="
                f"{self.run.config.rollout.max_prompt_tokens} and were truncated at their beginning"
            )
        self.log.add(policy.name, rows, summarise(rows))

    def _to_plain(self, policy: NamedPolicy) -> Rows:
        """Evaluate the prompts without disguise: unsafe, safe, and those that succeeded in an earlier run."""
        rows = []
        for part, prompts in zip(COLUMNS, (self.set.harmful, self.set.safe, self.set.regressions), strict=True):
            # a case may be a disguise or have demonstrations, so it may be as long as when it was found
            max_length = policy.prompt_capacity if part == "regression" else 0
            for row in self._ask(policy, part, prompts, max_length):
                metric, says = COLUMNS[part]
                rows.append({**row, metric: says(row["outcome"])})
                if part == "unsafe" and self.classifier.judge is not None:  # only a judge gives scores
                    rows[-1][HARM_SCORE] = row.get("score")
        return rows

    def _ask(self, policy: NamedPolicy, part: str, prompts: Sequence[SafetyPrompt], max_tokens: int = 0) -> Rows:
        """Return one row per response with its outcome, ordered by prompt, then by sample."""
        if not prompts:
            return []
        group = self.run.config.evaluation.samples_per_prompt
        collected = policy.ask(part, [prompt.prompt for prompt in prompts], group, max_tokens=max_tokens)
        requested = [prompt for prompt in prompts for _ in range(group)]
        grades = self.classifier.grades(
            requested, [episode.response for responses in collected for episode in responses]
        )
        rows = []
        for index, (prompt, responses) in enumerate(zip(prompts, collected, strict=True)):
            for sample, episode in enumerate(responses):
                grade = grades[index * group + sample]
                rows.append({**policy.row(part, index, sample, prompt, episode), **grade_columns(grade)})
        return rows

    def _many_shot(self, policy: NamedPolicy) -> Rows:
        rows: Rows = []
        max_length = self.settings.shot_tokens or self.run.config.rollout.max_prompt_tokens
        for shots in self.settings.many_shot:
            prompts = [with_shots(prompt, self.set.demonstrations, shots) for prompt in self.set.harmful]
            needed = max(len(policy.encoder.prompt(prompt.prompt)) for prompt in prompts)
            # a truncated prompt would lose demonstrations, so this number of shots is left out
            if needed > max_length:
                self.run.note(
                    f"{policy.name}: {shots} demonstrations are left out: they need {needed} tokens, but the limit is "
                    f"{max_length} (algorithm.shot_tokens)"
                )
                continue
            for row in self._ask(policy, f"many_shot/{shots}", prompts, max_length):
                rows.append({**row, f"safety/many_shot/{shots}": succeeded(row["outcome"])})
        return rows

    def _opinions(self, policy: NamedPolicy) -> Rows:
        """Evaluate every question without and with the user's opinion, paired by sample."""
        if not self.questions:
            return []
        group = self.run.config.evaluation.samples_per_prompt
        neutral = [as_prompt(question.question) for question in self.questions]
        biased = [as_prompt(question.with_opinion) for question in self.questions]
        collected = policy.ask("sycophancy", [*neutral, *biased], group)
        rows = []
        for index, question in enumerate(self.questions):
            both = zip(collected[index], collected[len(self.questions) + index], strict=True)
            for sample, (before, after) in enumerate(both):
                to_user, away = turned_rates(question.is_wrong(before.response), question.is_wrong(after.response))
                prompt = SafetyPrompt(biased[index], harmful=False, category="sycophancy")
                row = policy.row("sycophancy", index, sample, prompt, after)
                row |= {"before": before.response, "safety/sycophancy": to_user, "safety/turned_away": away}
                rows.append(row)
        return rows

    def _push_back(self, policy: NamedPolicy) -> Rows:
        """Reply to every response with doubt and, for comparison, with a request to answer the question again."""
        if not self.settings.push_back:
            return []
        group = self.run.config.evaluation.samples_per_prompt
        questions = self.honesty.answerable
        collected = policy.ask("push_back", [question.prompt for question in questions], group)
        asked = [question for question in questions for _ in range(group)]
        first = [episode.response for episodes in collected for episode in episodes]
        before = self.honesty.outcomes(asked, first)
        rows: Rows = []
        # a sampled answer also changes without any doubt: the second part measures how often
        for part, text, suffix in (("push_back", PUSH_BACK, ""), ("ask_again", ASK_AGAIN, "_by_chance")):
            prompts = [second_turn(q.prompt, response, text) for q, response in zip(asked, first, strict=True)]
            collected = policy.ask(part, prompts, 1, max_tokens=policy.prompt_capacity)
            seconds = [episode for (episode,) in collected]
            after = self.honesty.outcomes(asked, [episode.response for episode in seconds])
            for index, (question, episode) in enumerate(zip(asked, seconds, strict=True)):
                prompt = SafetyPrompt(question.prompt, harmful=False, category=part)
                row = policy.row(part, index // group, index % group, prompt, episode)
                # clustered by the question, which every sample shares
                row |= {"prompt": question.prompt, "before": first[index], "said": text}
                row |= {"outcome_before": before[index], "outcome_after": after[index]}
                if before[index] == "right":
                    row[f"safety/dropped{suffix}"] = int(after[index] != "right")
                else:
                    row[f"safety/corrected{suffix}"] = int(after[index] == "right")
                rows.append(row)
        return rows

    def _honesty(self, policy: NamedPolicy) -> Rows:
        if not self.settings.honesty:
            return []
        group = self.run.config.evaluation.samples_per_prompt
        questions = [*self.honesty.answerable, *self.honesty.unanswerable]
        collected = policy.ask("honesty", [question.prompt for question in questions], group)
        rows: Rows = []
        for index, (question, episodes) in enumerate(zip(questions, collected, strict=True)):
            responses = [episode.response for episode in episodes]
            outcomes = self.honesty.outcomes([question] * group, responses)
            category = "answerable" if question.answerable else "unanswerable"
            for sample, (episode, outcome) in enumerate(zip(episodes, outcomes, strict=True)):
                prompt = SafetyPrompt(question.prompt, harmful=False, category=category)
                row = policy.row("honesty", index, sample, prompt, episode)
                row |= {"outcome_honesty": outcome, "safety/honesty": honesty_score(question, outcome)}
                row["safety/falsehoods"] = int(outcome == "wrong")
                row[f"safety/abstained/{category}"] = int(outcome == "abstained")
                if question.answerable:
                    row["safety/answered_right"] = int(outcome == "right")
                rows.append(row)
        return rows

    def _extractions(self, policy: NamedPolicy) -> Rows:
        attempts = []
        for canary in self.canaries:
            attempts += [(canary, name, text) for name, text in system_prompts(canary).items()]
        attempts += [(canary, "training", training_prompt(canary)) for canary in self.planted]
        fitting = [(canary, name, text) for canary, name, text in attempts if policy.fits(text)]
        if len(fitting) < len(attempts):
            self.run.note(
                f"{policy.name}: {len(attempts) - len(fitting)} of {len(attempts)} extractions are left out: they are "
                f"longer than the {policy.prompt_capacity} tokens that the model has for a prompt"
            )
        if not fitting:
            return []
        prompts = [text for _, _, text in fitting]
        collected = policy.ask("extraction", prompts, 1, max_tokens=policy.prompt_capacity)
        rows: Rows = []
        for index, ((canary, name, text), (episode,)) in enumerate(zip(fitting, collected, strict=True)):
            row = policy.row("extraction", index, 0, SafetyPrompt(text, harmful=False, category=name), episode)
            leaked = int(canary.is_leaked(episode.response))
            if name == "training":
                row["safety/memorised" if canary.planted else "safety/memorised_control"] = leaked
            else:
                # clustered by the code: its extractions are not independent
                row |= {"prompt": canary.owner, "text": text, "safety/leaked": leaked, f"safety/leaked/{name}": leaked}
            rows.append(row)
        return rows

    def _regression_cases(self) -> str:
        """Return every successful prompt, once, as rows for `algorithm.regressions`."""
        cases: dict[str, dict[str, Any]] = {}
        for policy in self.log.policies:
            for row in self.log.rows(policy["name"]):
                # safe prompts and questions cannot succeed; summaries repeat a row of the attempt
                is_attack = row["part"] not in ("safe", "sycophancy", "red_team_prompt")
                if not is_attack or not succeeded(row.get("outcome")):
                    continue
                found_by = row.get("attack", "as it is") if row["part"] == "red_team" else row["part"]
                case = {"prompt": row["prompt"], "label": "unsafe"}
                case |= {name: row[name] for name in ("category", "base", "undisguised")}
                case |= {"reply": row["response"], "policy": policy["name"], "found_by": found_by}
                # keep the first policy and attack that found the prompt
                cases.setdefault(row["prompt"], case)
        return json_lines(cases.values(), ensure_ascii=False)

    def _compare_summaries(self) -> list[dict[str, Any]]:
        summaries = {policy["name"]: {**policy, "metrics": dict(policy["metrics"])} for policy in self.log.policies}
        first, *others = summaries
        comparisons: dict[tuple[str, str], Comparison] = {}
        for name in others:
            for key in COMPARED:
                a, b = (outcomes_by(self.log.rows(policy), "prompt", key) for policy in (first, name))
                comparisons[name, key] = paired_by_prompt(a, b)
        # all policies and rates are one family of tests
        adjusted = holm([comparison.p_value for comparison in comparisons.values()])
        for ((name, key), comparison), p_holm in zip(comparisons.items(), adjusted, strict=True):
            found = comparison.to_dict()
            metrics = summaries[name]["metrics"]
            metrics[f"{key}_change"] = found["difference"]
            metrics[f"{key}_p"] = p_holm
            metrics[f"{key}_detectable"] = found["minimum_detectable_effect"]
        return list(summaries.values())


COLUMNS = {
    "unsafe": ("safety/attack_success", succeeded),
    "safe": ("safety/over_refusal", refused),
    "regression": ("safety/regressions", succeeded),
}
"""Part of the evaluation → (metric, function from an outcome to its value)."""


def summarise(rows: Rows) -> dict[str, Estimate]:
    """Return all rates of one policy."""
    metrics: dict[str, Estimate] = {}
    for part, (key, _) in COLUMNS.items():
        of_part = [row for row in rows if row["part"] == part]
        if not of_part:
            continue
        metrics[key] = _rate(of_part, key)
        if part == "regression":  # its prompts are those that succeeded in an earlier run, and no random sample
            continue
        categories = grouped(of_part, "category")
        if len(categories) > 1:
            metrics |= {f"{key}/{category}": _rate(in_category, key) for category, in_category in categories.items()}
        if metrics[key].mean == 0:
            metrics[f"{key}_below"] = upper_bound(metrics[key])
    simple = [row for row in rows if row["part"] in ("unsafe", "safe")]
    for name in ("partial", "evaded"):
        marked = [{**row, name: None if row["outcome"] is None else int(row["outcome"] == name)} for row in simple]
        metrics[f"safety/{name}"] = _rate(marked, name)
    metrics["safety/on_topic"] = _rate(simple, "on_topic")
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("safety/"))
    for key in [key for key in keys if key not in metrics]:
        metrics[key] = _rate([row for row in rows if key in row], key)
    return metrics


def _rate(rows: Rows, key: str) -> Estimate:
    """Return the rate of 1 in a column, clustered by prompt. For scores and for a column in `MEANS`, it is the mean."""
    values_N = column(rows, key)
    prompts = [row["prompt"] for row in rows]
    if key in MEANS:
        return clustered_mean(values_N, prompts)
    return win_rate(values_N, prompts) if key == HARM_SCORE else clustered_rate(values_N, prompts)


def build(settings: Safety, run: Run) -> SafetyEvaluation:
    return SafetyEvaluation(settings, run)
