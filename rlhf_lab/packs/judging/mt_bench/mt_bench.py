"""The stage `mt_bench`: two-turn conversations of each policy, and the judge's grade of each turn.

The instructions are those of a rubric with one criterion in MT-Bench's words (`judges/rubrics/mt_bench.yml`), and the
judge answers in JSON. Grades are therefore comparable between policies under the same judge, but not with numbers
published for FastChat's prompts.

Questions are MT-Bench's own file, or pairs of prompts of an embedded world.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.rows import describe, is_text_list
from rlhf_lab.data.transcript import render_prompt, to_conversation
from rlhf_lab.evaluations.policy_log import PolicyLog
from rlhf_lab.packs.judging.judges.context import judge_of, label_cost
from rlhf_lab.packs.judging.judges.questions import REASONS, GradingQuestion
from rlhf_lab.packs.judging.judges.requests import CompletionRequest
from rlhf_lab.packs.judging.judges.rubric import grade_request, load_rubric, read_grades
from rlhf_lab.packs.judging.mt_bench.settings import MTBench
from rlhf_lab.packs.judging.safety.asking import NamedPolicy, Rows
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.rows import column, grouped
from rlhf_lab.training.run import Result, Run

TURNS = 2  # messages of the user in a question
REFERENCE_CATEGORIES = ("math", "reasoning", "coding")
"""Categories whose questions are graded with a reference answer, as FastChat's `NEED_REF_CATS`."""
WORLD = "world"
"""Category of questions that are made of prompts of an embedded world."""


@dataclass(frozen=True)
class TwoTurnQuestion:
    """A question of two turns.

    Attributes:
        identifier: MT-Bench's `question_id` as text.
        turns: the two messages of the user.
        references: reference answer to each turn; "" for a turn without one.
    """

    identifier: str
    category: str
    turns: tuple[str, str]
    references: tuple[str, str] = ("", "")

    def reference(self, turn: int) -> str | None:
        """Return the reference for grading turn 0 or 1; None if it has none or the category is graded without one.

        The reference of the second turn contains that of the first, as in FastChat.
        """
        if self.category not in REFERENCE_CATEGORIES or not self.references[turn]:
            return None
        if turn == 0 or not self.references[0]:
            return self.references[turn]
        return f"First question: {self.references[0]}\n\nSecond question: {self.references[1]}"


def questions_of(corpus: Corpus, limit: int) -> list[TwoTurnQuestion]:
    """Return at most `limit` questions of a corpus.

    Data with a column `turns` are read as MT-Bench: all rows of both splits, because nothing is trained. In an embedded
    world, question k consists of two successive single-turn prompts of the test split.

    Raises DataError if the rows are no questions of two turns.
    """
    prompts = list(dict.fromkeys([*corpus.prompts("train"), *corpus.prompts("test")]))
    rows = [corpus.metadata.get(prompt, {}) for prompt in prompts]
    if corpus.oracle is not None and not any("turns" in row for row in rows):
        return _world_questions(corpus)[:limit]
    return balanced([_read_question(row, corpus.name) for row in rows], limit)


def _read_question(row: Mapping[str, Any], name: str) -> TwoTurnQuestion:
    where = f"data={name}, question {row.get('question_id', 'without question_id')}"
    turns = row.get("turns")
    if not _is_two_texts(turns) or not all(turn.strip() for turn in turns):
        raise DataError(
            f"{where}: turns is {describe(turns)}; expected a list of two messages of the user, as in MT-Bench: "
            "data=mt_bench data.path=question.jsonl"
        )
    references = row.get("reference") or ["", ""]
    if not _is_two_texts(references):
        raise DataError(
            f'{where}: reference is {describe(references)}; expected a list of two texts, with "" for a turn without a '
            "reference answer"
        )
    return TwoTurnQuestion(
        str(row.get("question_id", "")),
        str(row.get("category") or "all"),
        (turns[0], turns[1]),
        (references[0], references[1]),
    )


def _is_two_texts(value: Any) -> TypeGuard[list[str]]:
    return is_text_list(value) and len(value) == TURNS


def _world_questions(corpus: Corpus) -> list[TwoTurnQuestion]:
    texts = []
    for prompt in corpus.prompts("test"):
        messages, _ = to_conversation(prompt)
        if len(messages) == 1:  # the second turn of a longer prompt refers to its first
            texts.append(str(messages[0]["content"]))
    pairs = zip(texts[::2], texts[1::2], strict=False)  # the last prompt of an odd number is left out
    return [TwoTurnQuestion(str(index), WORLD, pair) for index, pair in enumerate(pairs)]


def balanced(questions: Sequence[TwoTurnQuestion], limit: int) -> list[TwoTurnQuestion]:
    """Return at most `limit` questions in their order, with equally many of each category as far as possible."""
    earlier: Counter[str] = Counter()  # number of earlier questions of a category
    ranks = []
    for index, question in enumerate(questions):
        ranks.append((earlier[question.category], index))
        earlier[question.category] += 1
    return [questions[index] for index in sorted(index for _, index in sorted(ranks)[:limit])]


RUBRIC = "mt_bench"
SCORE = "mt_bench/score"
TEMPERATURES = {
    "writing": 0.7,
    "roleplay": 0.7,
    "extraction": 0.0,
    "math": 0.0,
    "coding": 0.0,
    "reasoning": 0.0,
    "stem": 0.1,
    "humanities": 0.1,
}
"""Sampling temperature by category, from FastChat's `temperature_config`. Others use `rollout.temperature`."""


class MTBenchEvaluation:
    """Evaluates every policy in `needs`, in their order."""

    def __init__(self, settings: MTBench, run: Run):
        self.settings = settings
        self.run = run
        self.rubric = load_rubric(RUBRIC)
        self.questions = questions_of(run.corpus, run.config.evaluation.prompts)
        self.judge = judge_of(run)
        self.log = PolicyLog(run)
        counted = sum(any(question.reference(turn) for turn in range(TURNS)) for question in self.questions)
        run.note(f"mt_bench: {len(self.questions)} questions, {counted} of them with a reference answer")

    def finish(self) -> Result:
        for role, source in self.run.needs.items():
            if not self.log.find(role):  # an earlier attempt may have evaluated it
                rows = self._grade(self._converse(NamedPolicy(role, source, self.run)), role)
                self.log.add(role, rows, summarise(rows))
        rows = [row for policy in self.log.policies for row in self.log.rows(policy["name"])]
        graded = sum(row["unscored"] is None for row in rows)
        metrics = {"mt_bench/questions": len(self.questions), **label_cost(self.run, self.judge, graded)}
        return Result(self.log.policies, metrics, [SCORE])

    def _converse(self, policy: NamedPolicy) -> Rows:
        group = self.run.config.evaluation.samples_per_prompt
        # MT-Bench prescribes a temperature for each category; one call samples all questions of a temperature
        by_temperature: dict[float, list[int]] = defaultdict(list)
        for index, question in enumerate(self.questions):
            temperature = TEMPERATURES.get(question.category, self.run.config.rollout.temperature)
            by_temperature[temperature].append(index)
        rows_of: dict[int, Rows] = {}
        for temperature, indices in by_temperature.items():
            questions = [self.questions[index] for index in indices]
            conversations = self._sample_conversations(policy, questions, group, temperature)
            for index, samples in zip(indices, conversations, strict=True):
                rows_of[index] = self._rows(policy.name, index, samples)
        if cut := policy.collector.prompts_cut:
            self.run.note(
                f"{policy.name}: {cut} conversations are longer than the model's positions allow and lost their "
                "beginning; lower rollout.max_new_tokens or use a model with more positions"
            )
        return [row for index in range(len(self.questions)) for row in rows_of[index]]

    def _sample_conversations(
        self, policy: NamedPolicy, questions: Sequence[TwoTurnQuestion], group: int, temperature: float
    ) -> list[list[tuple[Episode, Episode]]]:
        """Return (first turn, second turn) of `group` conversations per question."""
        opening = [render_prompt([_user(question.turns[0])]) for question in questions]
        first = self._sample(policy, 1, opening, group, temperature)
        # every conversation has its own first response, so the second turn is one prompt per conversation
        continued = []
        for question, episodes in zip(questions, first, strict=True):
            opened, followed_up = question.turns
            for episode in episodes:
                turns = [_user(opened), _assistant(episode.response), _user(followed_up)]
                continued.append(render_prompt(turns))
        second = [episode for (episode,) in self._sample(policy, 2, continued, 1, temperature)]
        answers = iter(second)
        return [[(episode, next(answers)) for episode in episodes] for episodes in first]

    def _sample(
        self, policy: NamedPolicy, turn: int, prompts: Sequence[str], group: int, temperature: float
    ) -> list[list[Episode]]:
        seed = self.run.seed(f"mt_bench/{turn}/{temperature}/{policy.name}", self.run.config.evaluation.seed)
        collector = policy.collector
        # a conversation may use all positions: the second turn needs the first one
        prompt_ids = [collector.encoder.prompt(prompt, policy.prompt_capacity) for prompt in prompts]
        tasks = [Task(prompt) for prompt in prompts]
        return collector.collect(policy.model, tasks, group, seed, temperature=temperature, prompts=prompt_ids)

    def _rows(self, name: str, index: int, samples: Sequence[tuple[Episode, Episode]]) -> Rows:
        question = self.questions[index]
        rows = []
        for sample, turns in enumerate(samples):
            for turn, episode in enumerate(turns):
                row = {"policy": name, "prompt_id": index, "question_id": question.identifier, "sample_id": sample}
                row |= {"turn": turn + 1, "category": question.category, "prompt": episode.task.prompt}
                row |= {"response": episode.response, "tokens": episode.sampled_tokens, "ended": int(episode.finished)}
                rows.append({**row, "reference": question.reference(turn)})
        return rows

    def _grade(self, rows: Rows, name: str) -> Rows:
        """Return the rows with the judge's grades. One call, so that a service can work in parallel."""
        requests = [self._request(row) for row in rows]
        answers = self.judge.complete_many(requests, title=f"grades of {name}")
        graded = []
        for row, answer in zip(rows, answers, strict=True):
            grades = read_grades(answer, self.rubric)
            score = None if math.isnan(grades.values[0]) else grades.values[0]
            graded.append({**row, SCORE: score, "reason": grades.reason, "unscored": grades.unscored})
        return graded

    def _request(self, row: dict[str, Any]) -> CompletionRequest:
        request = grade_request(
            self.rubric, row["prompt"], row["response"], reference=row["reference"], max_tokens=self.settings.max_tokens
        )
        # a world knows its prompts, but not conversations with a policy, so a simulated judge gets the turn's question
        question = self.questions[row["prompt_id"]].turns[row["turn"] - 1]
        about = GradingQuestion(
            render_prompt([_user(question)]), row["response"], self.rubric.names, self.rubric.low, self.rubric.high
        )
        return replace(request, about=about)


def _user(content: str) -> Any:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Any:
    return {"role": "assistant", "content": content}


def summarise(rows: Rows) -> dict[str, Estimate]:
    """Return the mean grade over both turns, by turn and by category, and the fraction of grades that are missing.

    Conversations and turns of one question are one cluster.
    """
    metrics = {SCORE: _mean(rows)}
    by_turn = grouped(rows, "turn")
    metrics |= {f"mt_bench/turn_{turn}": _mean(by_turn.get(turn, [])) for turn in range(1, TURNS + 1)}
    categories = grouped(rows, "category")
    if len(categories) > 1:  # with a single category, its mean would equal the score
        metrics |= {f"{SCORE}/{category}": _mean(in_category) for category, in_category in categories.items()}
    questions = [row["prompt_id"] for row in rows]
    for reason in REASONS:
        of_reason = [float(row["unscored"] == reason) for row in rows]
        metrics[f"mt_bench/{reason}"] = clustered_mean(of_reason, questions)
    return metrics


def _mean(rows: Rows) -> Estimate:
    return clustered_mean(column(rows, SCORE), [row["prompt_id"] for row in rows])


def build(settings: MTBench, run: Run) -> MTBenchEvaluation:
    return MTBenchEvaluation(settings, run)
