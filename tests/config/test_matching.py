"""Data that lack what parts of a run need: the message names data, and other options, that would do."""

from __future__ import annotations

from support import checked

from rlhf_lab.config import matching
from rlhf_lab.config.matching import RunPart
from rlhf_lab.core.capabilities import Capability


def test_data_and_options_that_would_do_are_named():
    part = RunPart("reward=verifier", (Capability.ANSWERS,), group="reward")
    message = matching.describe_missing(part, checked("dpo"))
    assert message.startswith("reward=verifier needs ") and "which data=mini_hh does not have; use " in message
    suggested = matching.suitable_data(part)
    assert suggested[0] == "arithmetic" and len(suggested) <= matching.MAX_SUGGESTIONS
    assert f"data={'|'.join(suggested)}" in message


def test_a_user_with_files_is_shown_other_kinds_of_files():
    config = checked("grpo", "data=prompts", "data.path=x.jsonl", "needs.policy=a/b", "needs.reward=a/b")
    part = RunPart("algorithm=sft", (Capability.DEMONSTRATIONS,), group="algorithm")
    assert "data=graded|pairs|sft|" in matching.describe_missing(part, config)
