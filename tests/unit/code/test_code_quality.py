"""Static quality of Python code as a reward: read from the syntax tree, never run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.code.rewards.code_quality import parsed
from rlhf_lab.packs.code.rewards.settings import CodeQuality

RUN = SimpleNamespace(config=SimpleNamespace(rollout=SimpleNamespace(max_new_tokens=256)))


GOOD = '''Here it is:
```python
import math


def area(radius):
    """Area of a circle."""
    try:
        return math.pi * radius**2
    except TypeError:
        return None
```
'''


POOR = """```python
import os, sys
def area(r):
    unused = 1
    try:
        return sys.maxsize
        print(r)
    except:
        pass
```"""


def test_output_beside_the_code_is_not_judged():
    reward = registry.build("reward", CodeQuality(), RUN)
    outputs = ("\n```\n>>> area(1)\n3.14\n```", "\n```\npython area.py\n```", "\n```\n3.14\n```")
    batch = reward(["p"] * 4, [GOOD, *(GOOD + output for output in outputs)])
    assert batch.total_N.tolist() == [1.0] * 4
    # code that is named as Python has to be valid
    assert reward(["p"], [f"{GOOD}\n```python\ndef (:\n```"]).total_N.tolist() == [0.0]


def test_code_is_judged_by_its_tree():
    """POOR: 1 of 2 imports, 0 of 1 names, 0 of 1 docstrings, lines fit, a bare except, 1 of 7 statements is dead."""
    reward = registry.build("reward", CodeQuality(), RUN)
    batch = reward(["p"] * 4, [GOOD, POOR, "```python\ndef (:\n```", "no code"])
    parts = {name: values.tolist()[:2] for name, values in batch.parts.items()}
    assert parts == {
        "parses": [1, 1],
        "used_imports": [1, 0.5],
        "used_names": [1, 0],
        "documented": [1, 0],
        "line_length": [1, 1],
        "named_errors": [1, 0],
        "reachable": [1, pytest.approx(6 / 7)],
    }
    assert batch.total_N[:3] == pytest.approx([1, (0.5 + 1 + 6 / 7) / 6, 0])
    assert np.isnan(batch.total_N[3]) and batch.parts["parses"][2] == 0


def test_code_is_never_run_and_nothing_it_says_can_break_the_reward(tmp_path):
    trap = tmp_path / "ran"
    texts = [f"```python\nopen({str(trap)!r}, 'w')\n```", "```python\n" + "(" * 5000 + "\n```", "```\nx = '\\d'\0\n```"]
    found = registry.build("reward", CodeQuality(), RUN)(["p"] * 3, texts).total_N
    assert not trap.exists() and found[1] == 0
    assert parsed("x = 1") is not None


def test_code_quality_knows_its_checks():
    with pytest.raises(ConfigError, match="checks: style is not one of used_imports"):
        CodeQuality(checks=("style",))
