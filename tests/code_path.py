"""The lines of the package that one step runs, counted while it runs: `make path` writes docs/code_path.md."""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rlhf_lab"
PAGE = ROOT / "docs" / "code_path.md"
sys.path.insert(0, str(ROOT / "tests"))

SMALL = ("algorithm.optimizer=adamw", "algorithm.lr=3e-3", "algorithm.log_every_steps=1", "checkpoint.every_steps=0")
POLICY = ("reward=gold", "needs.reward=null", "algorithm.critic=zero", "algorithm.critic_warmup=0")
STEPS: dict[str, tuple[str, tuple[str, ...], tuple[int, int]]] = {
    "a DPO step": ("dpo", ("needs.reward=null", "algorithm.batch_size=16", "algorithm.epochs=1"), (2, 3)),
    "a PPO iteration": (
        "ppo",
        (*POLICY, "algorithm.prompts_per_iteration=8", "algorithm.iterations=3", "algorithm.batch_size=8"),
        (2, 4),  # two passes of one step each: from the first step of the second iteration to that of the third
    ),
}
"""Step to follow → recipe, its settings, and the first and last step of the recording."""


class Recorder:
    """Notes every line of the package that runs between two calls of `collect`."""

    def __init__(self, first: int, last: int):
        self.first, self.last, self.recording = first, last, False
        self.lines: dict[str, set[int]] = {}
        self.functions: dict[str, list[str]] = {}

    def wrap(self, collect: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
        def watched(algorithm: Any, step: int) -> Any:
            if step == self.first:
                self.recording = True
                sys.settrace(self.trace)
                caller = sys._getframe(1)
                caller.f_trace = self.trace  # the loop itself has been entered already
            elif step == self.last:
                self.recording = False
                sys.settrace(None)
            return collect(algorithm, step)

        return watched

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(str(PACKAGE)):
            return None
        if self.recording and event in ("line", "call"):
            name = str(Path(path).relative_to(PACKAGE))
            if event == "call" and not frame.f_code.co_name.startswith("<"):
                called = self.functions.setdefault(name, [])
                if frame.f_code.co_name not in called:
                    called.append(frame.f_code.co_name)
            if event == "line":
                self.lines.setdefault(name, set()).add(frame.f_lineno)
        return self.trace


def follow(what: str) -> Recorder:
    """Run a small stage and record one of its steps, without what the first step prepares."""
    from support import ONE_LAYER, SMALL_WORLD, planned

    from rlhf_lab.config import registry
    from rlhf_lab.stages.execute import execute

    recipe, more, (first, last) = STEPS[what]
    recorder = Recorder(first, last)
    with tempfile.TemporaryDirectory() as directory:
        common = (*SMALL_WORLD, *ONE_LAYER, f"outputs={directory}")
        start = planned("sft", *common, "algorithm.batch_size=96", "algorithm.epochs=0.1", "algorithm.lr=1e-12")
        execute(start)
        stage = planned(recipe, *more, *common, *SMALL, f"needs.policy={start.model}")
        module = import_module(registry.implementation("algorithm", recipe))
        build = module.build

        def watched(settings: Any, run: Any) -> Any:
            algorithm = build(settings, run)
            algorithm.collect = recorder.wrap(type(algorithm).collect).__get__(algorithm)
            return algorithm

        module.build = watched
        try:
            # a bar that is drawn in a recorded step would add lines on a slow machine only
            with patch("rlhf_lab.core.progress.REFRESH_SECONDS", math.inf):
                execute(stage)
        finally:
            module.build = build
            sys.settrace(None)
    assert recorder.lines, f"no line of {PACKAGE} was run: the package that was imported is another one"
    return recorder


def table(what: str) -> str:
    """One row per file, most lines first."""
    recorder = follow(what)
    counts = {name: len(lines) for name, lines in recorder.lines.items()}
    head = f"### {what[0].upper()}{what[1:]}: {sum(counts.values())} lines in {len(counts)} files\n\n"
    rows = ["| file | lines | functions, in the order in which they are first called |", "|---|---:|---|"]
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        functions = ", ".join(f"`{each}`" for each in recorder.functions.get(name, []))
        rows.append(f"| [`{name}`](../rlhf_lab/{name}) | {counts[name]} | {functions} |")
    return head + "\n".join(rows) + "\n"


def start(what: str) -> str:
    return f"<!-- {what}, made by `make path` -->\n"


def page(text: str, what: str, new: str) -> str:
    before, _, rest = text.partition(start(what))
    return before + start(what) + "\n" + new + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]


def stated(text: str, what: str) -> dict[str, int]:
    """File → lines, as the page says."""
    part = text.partition(start(what))[2].partition("<!-- end -->")[0]
    return {name: int(lines) for name, lines in re.findall(r"^\| \[`([^`]+)`\]\S* \| (\d+) \|", part, re.M)}


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for what in STEPS:
        text = page(text, what, table(what))
    PAGE.write_text(text, encoding="utf-8")
