"""The fault campaign: hundreds of runs that are killed, starved of disk or have their files damaged, then run again.

    python tests/campaign/faults.py --faults 200 --seed 0 --out docs/results/faults.md

Every case selects a stage, a fault and a call by the seed, runs the real command line at a tiny size, injects the
fault, gives the same command again until it completes, and compares the store with that of an uninterrupted run. A
refusal has to name file, reason and remedy; then the fault is lifted, or the remedy followed. Linux; a full and a
read-only disk need root (tmpfs), and else are stood in for. Exit status 1 unless every case ends equal.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.extend(str(parent) for parent in list(Path(__file__).resolve().parents)[1:3])
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false")
os.environ.update(HF_HUB_OFFLINE="1", NO_COLOR="1", COLUMNS="200")
os.environ.update(PYTHONPATH=os.pathsep.join(sys.path[-2:]))

import cases
import kinds
import report
import scenarios


def preload() -> None:
    """Import what every run imports, once; no tensor is touched, so that a fork is like a fresh process."""
    import peft  # noqa: F401
    import safetensors.torch  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    import rlhf_lab.algorithms.policy_gradient.ppo
    import rlhf_lab.algorithms.preference.dpo_iterative
    import rlhf_lab.main
    import rlhf_lab.reports.report  # noqa: F401


def draw(stages: Sequence[str], faults: Sequence[str], count: int, seed: int) -> list[cases.Case]:
    """Return this number of cases: every kind of fault once, then every kind in every stage it fits, shuffled."""
    rng = random.Random(seed)
    fitting = {kind: [stage for stage in stages if kinds.fits(kind, stage)] for kind in faults}
    pairs = [(kind, stage) for kind in faults for stage in fitting[kind]]
    first = [(kind, rng.choice(fitting[kind])) for kind in faults if fitting[kind]]
    rest = [pair for pair in rng.sample(pairs, len(pairs)) if pair not in first]
    order = first + rest
    while len(order) < count:
        order += rng.sample(pairs, len(pairs))
    return [cases.Case(index, stage, kind, seed) for index, (kind, stage) in enumerate(order[:count])]


def run(case: cases.Case) -> cases.Outcome:
    """One case in its own directory, which stays if the case fails."""
    directory = WORK / f"case_{case.number}"
    (directory / "run").mkdir(parents=True)
    play = cases.Play(case, SCENARIOS[case.stage], WORK / "reference", directory)
    try:
        kinds.FAULTS[case.kind](play)
        outcome = play.outcome()
    except cases.Failure as failure:
        outcome = cases.Outcome(case, failure.finished, [*play.remarks, str(failure)])
    except Exception:  # of the campaign itself
        outcome = cases.Outcome(case, cases.WRONG, [*play.remarks, traceback.format_exc()])
    if outcome.finished in cases.GOOD:
        shutil.rmtree(directory)
    return outcome


def main() -> int:
    options = parse()
    stages = options.stages or list(scenarios.COMMANDS)
    possible, notes = kinds.possible(WORK)
    preload()
    began = time.monotonic()
    print(f"work {WORK}", flush=True)
    (WORK / "reference").mkdir()
    for name in stages:
        SCENARIOS[name] = scenarios.Scenario(name)
        SCENARIOS[name].measure(WORK / "reference")
        print(f"{name}: {SCENARIOS[name].seconds:.1f} s, {len(SCENARIOS[name].moments)} moments", flush=True)
    todo = draw(stages, possible, options.faults, options.seed)
    todo = [case for case in todo if options.only is None or case.number in options.only]
    outcomes = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("fork")) as pool:
        for outcome in pool.map(run, todo):
            outcomes.append(outcome)
            print(outcome.line(), flush=True)
    seconds = time.monotonic() - began
    text = report.render(outcomes, notes, seconds, f"--faults {options.faults} --seed {options.seed}", options.workers)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    bad = [outcome for outcome in outcomes if outcome.finished not in cases.GOOD]
    print(f"{len(outcomes)} faults, {len(bad)} of them not handled, {seconds:.0f} s")
    if not bad:
        shutil.rmtree(WORK)
    return 1 if bad else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200, help="number of cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="Markdown report to write")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="cases at a time")
    parser.add_argument("--stages", nargs="+", choices=list(scenarios.COMMANDS), help="only these")
    parser.add_argument("--only", nargs="+", type=int, help="only the cases of these numbers")
    return parser.parse_args()


SCENARIOS: dict[str, scenarios.Scenario] = {}
WORK = Path()

if __name__ == "__main__":
    WORK = Path(tempfile.mkdtemp(prefix="faults-"))
    sys.exit(main())
