"""Check the numbers of a study by simulation: coverage of its intervals and wrong verdicts.

    python tests/campaign/interval_coverage.py --out docs/results/coverage.md

Everything is judged by the functions that print a study. One process, about a quarter of an hour; `--quick` takes
seconds and shows every row with next to no studies behind it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.extend(str(Path(__file__).resolve().parents[level]) for level in range(3))

import cliff
import coverage_synthetic
import coverage_worlds
import numpy as np
import type_one
from covering import BAR_WORDS, Table, error_of_share, options, share, simulated, write_page


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
    return simulated(parts)


def precision(sizes: Sizes) -> list[str]:
    """Return the paragraph on the bar and on how well a share is known."""
    noise = ", ".join(
        f"{share(error_of_share(0.95, count))} over {count} studies"
        for count in (sizes.studies, sizes.corpora * sizes.given)
    )
    bar = f"The bar for coverage is {BAR_WORDS}; cells outside it are bold."
    return [f"{bar} A share of .95 is known to {noise} (standard error).", ""]


def main() -> int:
    given = options(__doc__).parse_args()
    sizes = QUICK if given.quick else Sizes()
    write_page(given, INTRO, simulate(sizes), script="interval_coverage", note=precision(sizes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
