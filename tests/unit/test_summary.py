"""What the console shows of a result: nothing is cut, whatever the width."""

from __future__ import annotations

import pytest
from rich.console import Console

from rlhf_lab.errors import ConfigError, DataError
from rlhf_lab.summary import COLUMNS, policy_table, print_problems
from rlhf_lab.trackers.console import console


def estimate(mean: float, low: float, high: float) -> dict:
    return {"mean": mean, "low": low, "high": high, "n": 8, "clusters": 4}


@pytest.mark.parametrize("width", [100, 140, 200])
def test_wide_numbers_wrap_and_are_never_cut(width):
    values = {key: estimate(-6094.72, -54318.72, 42129.28) for key in COLUMNS}
    policies = [{"name": name, "metrics": values} for name in ("SFT", "one-pass DPO", "iteration 1")]
    plain = Console(width=width, no_color=True)
    with plain.capture() as captured:
        plain.print(policy_table(policies))
    out = captured.get()
    assert "…" not in out
    assert all(policy["name"] in out for policy in policies)


def test_a_problem_of_several_lines_is_one_problem():
    with console.capture() as captured:
        print_problems(DataError("1 row cannot be read\n  row 4: broken JSON\nCorrect the row"))
    assert captured.get().startswith("1 problem, nothing was run:\n  • 1 row cannot")
    with console.capture() as captured:
        print_problems(ConfigError(["a=1 is wrong", "b=[/] is wrong"]))
    assert captured.get() == "2 problems, nothing was run:\n  • a=1 is wrong\n  • b=[/] is wrong\n"
