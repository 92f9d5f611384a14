"""The final answer in what an agent says."""

from __future__ import annotations

import pytest

from rlhf_lab.packs.agents.gaia.answers import ANSWER_FORMAT, final_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I add.\nFINAL ANSWER: 17", "17"),
        ("FINAL ANSWER: 17\nThat was all.", "17"),
        ("FINAL ANSWER: 1\nNo.\nFINAL ANSWER: 2", "2"),
        ("**FINAL ANSWER:** a, b", "a, b"),
        ("**FINAL ANSWER: 17**", "17"),
        ("**Final Answer**: 17", "17"),
        ("final answer :\n\n`17`\n", "17"),
        ("FINAL ANSWER: <17>", "17"),
        ("FINAL ANSWER: [a, b]", "a, b"),
        ("FINAL ANSWER: [1], [2]", "[1], [2]"),
        ('FINAL ANSWER: "Slate"', '"Slate"'),
        ("FINAL ANSWER: U.S.A.", "U.S.A."),
        ("FINAL ANSWER:", None),
        ("FINAL ANSWER: ** **\n", None),
        ("The answer is 17", None),
        ("", None),
    ],
)
def test_the_answer_is_found(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_the_instruction_names_the_marker() -> None:
    assert final_answer(ANSWER_FORMAT) is not None
