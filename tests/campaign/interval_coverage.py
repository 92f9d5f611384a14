"""Check the numbers of a study by simulation: coverage of its intervals and wrong verdicts.

    python tests/campaign/interval_coverage.py --out docs/results/coverage.md

Everything is judged by the functions that print a study. One process, about a quarter of an hour; `--quick` takes
seconds and shows every row with next to no studies behind it.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.extend(str(Path(__file__).resolve().parents[level]) for level in range(3))

import cliff
import coverage_synthetic
import coverage_worlds
import numpy as np
import type_one
from covering import BAR_WORDS, Table, error_of_share, section, share

from rlhf_lab.stages.manifest import git_sha


@dataclass(frozen=True)
class Sizes:
    """Sizes of the simulation.

    Args:
        pool: replications of the dialogue experiment; `laboratories` of them are also trained again on kept data.
        studies: studies sampled from the pool, per number of seeds.
        corpora, trainings, prompts: fixed corpora, trainings on each and prompts in its population.
        given: studies per corpus, number of seeds and number of prompts.
        tables: normal tables, `rates` studies of rates, `families` studies of claims, per cell.
    """

    pool: int = 1500
    laboratories: int = 250
    studies: int = 1000
    corpora: int = 40
    trainings: int = 40
    prompts: int = 3000
    given: int = 12
    tables: int = 4000
    rates: int = 500
    families: int = 2000


QUICK = Sizes(
    pool=10, laboratories=1, studies=1, corpora=1, trainings=3, prompts=40, given=1, tables=2, rates=1, families=1
)
GIVEN_PROMPTS = (30, 128, 500)
INTRO = """# Coverage

Do 95 % intervals hold the truth in 95 % of studies, and how often is a verdict wrong? Everything below is simulated and
judged by the functions that print a study (`rlhf_lab/studies/replicates.py`, `verdict.py`).
"""


def simulate(sizes: Sizes) -> list[Table]:
    """All tables of the page, in its order."""
    parts: list[Callable[[], Table]] = [
        lambda: coverage_worlds.replications(
            coverage_worlds.draw_pool(sizes.pool, sizes.laboratories), sizes.studies, np.random.default_rng(1)
        ),
        lambda: coverage_worlds.given_data(sizes.corpora, sizes.trainings, sizes.prompts, GIVEN_PROMPTS, sizes.given),
        lambda: coverage_synthetic.crossed_normal(sizes.tables),
        lambda: coverage_synthetic.few_rates(sizes.rates),
        lambda: type_one.difference_errors(sizes.families),
        lambda: type_one.sameness_errors(sizes.families),
        lambda: type_one.power(sizes.families),
        cliff.cliff,
        cliff.outcome_cliff,
    ]
    tables = []
    for part in parts:
        began = time.process_time()
        tables.append(part())
        print(f"{tables[-1].name}: {time.process_time() - began:.0f} s", flush=True)
    return tables


def render(tables: Sequence[Table], sizes: Sizes, seconds: float) -> str:
    """Return the page as Markdown: conclusions, method, tables."""
    noise = ", ".join(
        f"{share(error_of_share(0.95, count))} over {count} studies"
        for count in (sizes.studies, sizes.corpora * sizes.given)
    )
    quick = " --quick" if sizes == QUICK else ""
    metadata = [
        *(f"- {conclusion}" for table in tables for conclusion in table.findings),
        "",
        f"The bar for coverage is {BAR_WORDS}; cells outside it are bold. A share of .95 is known to {noise} (standard "
        "error).",
        "",
        f"- `python tests/campaign/interval_coverage.py{quick} --out docs/results/coverage.md` (`make coverage`)",
        f"- {time.strftime('%Y-%m-%d')}, commit {(git_sha() or 'unknown')[:7]}, Python {platform.python_version()}, "
        f"numpy {version('numpy')}, scipy {version('scipy')}, {seconds / 60:.0f} min on one core",
    ]
    return "\n".join([INTRO, *metadata, *(line for table in tables for line in section(table))]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="Markdown page to write; without it the page is printed")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: every row, few studies")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes()
    began = time.process_time()
    text = render(simulate(sizes), sizes, time.process_time() - began)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
