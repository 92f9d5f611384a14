"""MT-Bench without models: what the second turn is asked, and by what grades are clustered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.data.transcript import to_conversation
from rlhf_lab.packs.judging.mt_bench.mt_bench import SCORE, MTBenchEvaluation, summarise


def test_the_second_turn_follows_the_own_response_of_its_conversation():
    asked: list[list[str]] = []

    def sample(policy: Any, turn: int, prompts: list[str], group: int, temperature: float) -> list[list[Episode]]:
        asked.append(prompts)
        return [
            [Episode(Task(prompt), prompt, f"{turn}.{i}.{k}") for k in range(group)] for i, prompt in enumerate(prompts)
        ]

    stage: Any = MTBenchEvaluation.__new__(MTBenchEvaluation)  # without a run
    stage._sample = sample
    questions = [SimpleNamespace(turns=("first?", "second?")), SimpleNamespace(turns=("other?", "last?"))]
    conversations = stage._sample_conversations(None, questions, 2, 0.7)
    texts = [[message["content"] for message in to_conversation(prompt).messages] for prompt in asked[1]]
    assert texts == [
        ["first?", "1.0.0", "second?"],
        ["first?", "1.0.1", "second?"],
        ["other?", "1.1.0", "last?"],
        ["other?", "1.1.1", "last?"],
    ]
    responses = [[tuple(turn.response for turn in turns) for turns in samples] for samples in conversations]
    assert responses == [[("1.0.0", "2.0.0"), ("1.0.1", "2.1.0")], [("1.1.0", "2.2.0"), ("1.1.1", "2.3.0")]]


def test_turns_and_conversations_of_a_question_are_one_cluster():
    rows = [
        {"prompt_id": prompt, "turn": turn, "category": "math", SCORE: score, "unscored": None}
        for prompt, turn, score in ((0, 1, 8.0), (0, 2, 6.0), (1, 1, 4.0), (1, 2, None), (2, 1, 9.0), (2, 2, 9.0))
    ]
    metrics = summarise(rows)
    assert (metrics[SCORE].clusters, metrics[SCORE].n, metrics[SCORE].unscored) == (3, 5, 1)
    assert (metrics["mt_bench/turn_2"].clusters, metrics["mt_bench/turn_2"].mean) == (2, 7.5)
