"""Recipes on the device: the demo, three studies, one speech and one agent recipe, with the verdicts of the CPU

Every recipe is the command line that a user types. Built stages are kept in the scratch directory, so that a study
that is cut off by the time limit resumes with the same command.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from kit import ROOT, SIMULATED, Case, Outcome, Target

from rlhf_lab.config import inventory

OF_PACKS = {"grpo_agent": 200, "tts_dpo": 240}
"""Recipe of a pack → seconds that it is expected to take."""
STUDIES = ("study/kl_control", "study/lora_rank", "study/ppo_vs_grpo")
PAGES = ROOT / "docs" / "results"


def cases(target: Target) -> list[Case]:
    """The demo, one agent and one speech recipe, then the studies, which need several calls."""
    found = [Case("demo", lambda: demo(target), 240)]
    known = inventory.recipes()
    found += [Case(name, lambda n=name: recipe(target, n), s) for name, s in OF_PACKS.items() if name in known]  # type: ignore[misc]
    # Studies resume from their store: they may start in whatever time is left, and are cut off by the limit.
    studies = STUDIES[:1] if target.tiny else STUDIES
    found += [Case(name.replace("/", "-"), lambda n=name: study(target, n), 100) for name in studies]  # type: ignore[misc]
    return found


def run(target: Target, name: str, *overrides: str) -> tuple[Path, str]:
    """Run a recipe. Return the directory of its outputs and its console output. Raise RuntimeError if it fails."""
    outputs = target.scratch / "store"
    words = [f"+recipe={name}", target.runtime, f"outputs={outputs}", *overrides]
    if target.tiny:
        from sizes import overrides as small

        words += small(name)
    done = subprocess.run(target.command(*words), capture_output=True, text=True, cwd=target.scratch)
    if done.returncode:
        raise RuntimeError(f"+recipe={name} ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return outputs, done.stdout


def demo(target: Target) -> Outcome:
    """README's demo: the answer on the device has the sign of the answer on the CPU, and the intervals overlap."""
    _, printed = run(target, "dpo_iterative")
    here = difference(printed)
    there = difference(accepted_page("dpo_iterative"))
    values: dict[str, float | str] = {}
    for name, numbers in (("device", here), ("cpu", there)):
        if numbers is not None:
            values |= {f"{name}_gold": numbers[0], f"{name}_half_width": numbers[1]}
    if target.tiny:
        return Outcome(values, True, "runs to its end")
    passed = here is not None and there is not None and abs(here[0] - there[0]) <= here[1] + there[1]
    return Outcome(values, passed, "iteration 3 against one-pass DPO; the 95 % intervals overlap")


def accepted_page(name: str) -> str:
    """Text of the page of an accepted result, which may be in the archive of earlier versions."""
    return next(PAGES.rglob(f"{name}.md")).read_text(encoding="utf-8")


def difference(text: str) -> tuple[float, float] | None:
    """(difference, half width) of a sentence such as "scores 0.14 ±0.10 lower"."""
    match = re.search(r"scores ([\d.]+)\s+±([\d.]+)\s+(lower|higher)", text)
    if match is None:
        return None
    sign = -1 if match[3] == "lower" else 1
    return sign * float(match[1]), float(match[2])


def recipe(target: Target, name: str) -> Outcome:
    """A recipe whose numbers are not compared: its policies, rewards and environments run on the device."""
    _, printed = run(target, name)
    lines = [line for line in printed.splitlines() if line.strip()]
    answer = next((line for line in lines if line.startswith(("Yes", "No", "Not ", "Undecided"))), lines[-1])
    return Outcome({}, True, answer.strip()[:200])


def study(target: Target, name: str) -> Outcome:
    """Verdicts of a study's claims on the device against those on its page, from a CPU."""
    from rlhf_lab.studies.frame import read_study
    from rlhf_lab.studies.verdict import verdicts

    overrides = ("study.until=null", "seed=0,1") if target.tiny else ()
    outputs, _ = run(target, name, "study.processes=1", *overrides)
    directory = next(path.parent for path in (outputs / "studies").glob("*/study.json") if named(path, name))
    here = [row.verdict for row in verdicts(read_study(directory))]
    there = re.findall(r"^\|.*\| \*\*(.+?)\*\* \|", accepted_page(Path(name).name), re.MULTILINE)
    same = sum(a == b for a, b in zip(here, there, strict=False))
    opposite = sum({a, b} == {"confirmed", "not confirmed"} for a, b in zip(here, there, strict=False))
    values = {"claims": len(here), "same": same, "opposite": opposite}
    if target.tiny or target.device == SIMULATED:
        return Outcome(values, True, "runs to its end")
    return Outcome(values, len(here) == len(there) and same == len(here), f"here: {', '.join(here)}")


def named(path: Path, name: str) -> bool:
    return Path(name).name in path.parent.name or name in json.loads(path.read_text()).get("recipe", "")
