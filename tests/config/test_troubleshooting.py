"""Messages of the page on troubleshooting are printed by commands with the mistake that the page names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlhf_lab.config import command_line
from rlhf_lab.core.errors import LabError
from rlhf_lab.stages import artifacts, preflight

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
MISTAKES = {
    "there is no such file or directory": "+recipe=dpo data=pairs data.path=missing.jsonl",
    "is not a setting of what was chosen": "+recipe=dpo algorithm.clip_low=0.1",
    "model.path is not set": "+recipe=dpo model=hf",
    "needs a true reward that is known": "+recipe=ppo data=pairs data.path=mine.jsonl reward=gold",
    "trains an adapter on an existing model": "+recipe=dpo model=tiny model.lora.rank=8",
    "transformers' Trainer has no Muon": "+recipe=sft engine=trl",
    "but a test split needs another one": "+recipe=dpo data=pairs data.path=mine.jsonl",
}
"""Message → command with this mistake, in a directory with the file mine.jsonl of one row."""
DEPENDS_ON_THE_MACHINE = {"needs a library that is not installed", "cannot be reached"}
"""Messages whose cause is a missing library or network."""


def problems(command: str) -> str:
    """Return what a command reports before anything is built."""
    with pytest.raises(LabError) as caught:
        checked = command_line.check_command(command.split())
        preflight.check([artifacts.plan(config, "named") for config in checked.configs])
    return str(caught.value)


def messages() -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)


def test_the_page_has_each_message_of_the_test() -> None:
    assert {*messages()} == {*MISTAKES, *DEPENDS_ON_THE_MACHINE}


@pytest.mark.parametrize("message", list(MISTAKES))
def test_a_message_is_printed_for_its_mistake(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    assert message in problems(MISTAKES[message])
