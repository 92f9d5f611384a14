"""Check the verdicts of studies that stop when decided by simulation: wrong verdicts, power and numbers of seeds.

    python tests/campaign/sequential.py --out docs/results/sequential.md

Everything is judged by the functions that judge a study. Two minutes on one core; `--quick` shows every row with next
to no studies behind it, and `--calibrate` simulates the table of `rlhf_lab/statistics/sequential.py` again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.extend(str(Path(__file__).resolve().parents[level]) for level in range(3))

import numpy as np
from covering import Table, claims, error_of_share, options, share, simulated, span, write_page
from scipy import stats
from scipy.special import stdtr

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.sequential import (
    BOUNDARIES,
    FIRST,
    LAST,
    beyond_p,
    discordant_p,
    looks_at,
    same_p,
    sequential_interval,
    smaller_p,
    two_sided,
)

FAMILIES = (1, 3, 6)
HORIZONS = (12, 30, 60)
"""Numbers of seeds after which wrong verdicts are counted."""
EFFECTS = (1.0, 1.5, 2.0, 3.0)
ALPHA = 0.05
STUDIES, QUICK = 20_000, 50
Draw = Callable[[np.random.Generator, int], FloatArray]
"""(random numbers, studies) → sequential p-values of one claim at `HORIZONS`, (studies, horizons)."""


def at_horizons(p_NL: FloatArray) -> FloatArray:
    """Select the looks after `HORIZONS` seeds of looks after every seed."""
    return p_NL[:, np.array(HORIZONS) - 1]


def differences(sample: Callable[[np.random.Generator, tuple[int, int]], FloatArray]) -> Draw:
    """Claims of a difference whose paired differences come from a distribution with mean 0."""

    def draw(rng: np.random.Generator, studies: int) -> FloatArray:
        return at_horizons(beyond_p(looks_at(sample(rng, (studies, HORIZONS[-1]))), 0.0))

    return draw


def outcomes(rate: float) -> Draw:
    """Claims about 0/1 outcomes with the same rate on both sides."""

    def draw(rng: np.random.Generator, studies: int) -> FloatArray:
        a, b = (rng.random((studies, HORIZONS[-1])) < rate for _ in range(2))
        first, second = (a & ~b).cumsum(-1), (b & ~a).cumsum(-1)
        return at_horizons(two_sided(discordant_p(first, second), discordant_p(second, first)))

    return draw


def ordinary(rng: np.random.Generator, studies: int) -> FloatArray:
    """Claims of a difference judged by an ordinary t test at every look, until one finds a difference."""
    looks = looks_at(rng.standard_normal((studies, HORIZONS[-1])))
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(np.maximum(looks.count_L - 1, 1), -np.abs(looks.mean_L / looks.error_L))
    return at_horizons(np.minimum.accumulate(np.where(looks.count_L >= FIRST, p, 1.0), axis=-1))


def amounts(scale: str) -> Draw:
    """Claims about a positive amount that varies much on one side (sd of its logarithm 1) and little on the other (.1).

    On the raw scale both sides have the same mean, on the log scale the same median.
    """

    def draw(rng: np.random.Generator, studies: int) -> FloatArray:
        shape = (studies, HORIZONS[-1])
        log_a, log_b = rng.normal(0, 1, shape), rng.normal(0, 0.1, shape)
        if scale == "log":
            return at_horizons(beyond_p(looks_at(log_a - log_b), 0.0))
        return at_horizons(beyond_p(looks_at(np.exp(log_a - 1 / 2) - np.exp(log_b - 0.1**2 / 2)), 0.0))

    return draw


SYMMETRIC = ("normal", "t with 3 degrees of freedom", "exponential, symmetric", "amounts, log scale")
NO_DIFFERENCE: dict[str, Draw] = {
    "normal": differences(lambda rng, shape: rng.standard_normal(shape)),
    "t with 3 degrees of freedom": differences(lambda rng, shape: rng.standard_t(3, shape)),
    "exponential, symmetric": differences(lambda rng, shape: rng.laplace(size=shape)),
    "amounts, log scale": amounts("log"),
    "amounts, raw scale": amounts("raw"),
    "outcomes 0 or 1, rate .5": outcomes(0.5),
    "outcomes 0 or 1, rate .1": outcomes(0.1),
    "normal, ordinary t test at every look": ordinary,
}


CELLS = tuple(f"{claims(size)}, {n} seeds" for size in FAMILIES for n in HORIZONS)


def family_rates(p_values: Iterable[FloatArray]) -> list[float]:
    """Return the shares of studies in which Holm rejects something, in the order of `CELLS`.

    It does exactly if the smallest p-value is at most α over the number of claims.

    Args:
        p_values: p-values of each claim, (studies, horizons).
    """
    p_CNH = np.stack(list(p_values))
    return [float(share) for size in FAMILIES for share in (p_CNH[:size].min(axis=0) <= ALPHA / size).mean(axis=0)]


def false_differences(studies: int) -> Table:
    """Claims of a difference where there is none: how often a family has a verdict."""
    rates = {}
    for index, (name, draw) in enumerate(NO_DIFFERENCE.items()):
        rng = np.random.default_rng([1, index])
        rates[name] = family_rates(draw(rng, studies) for _ in range(max(FAMILIES)))
    symmetric = [rate for name in SYMMETRIC for rate in rates[name]]
    coins = [rate for name, found in rates.items() if "outcomes" in name for rate in found]
    return Table(
        name="Claims of a difference where there is none",
        about=(
            "Share of studies in which some claim of the family is decided at a look up to this number of seeds, "
            "either way, after Holm. Claims are independent, which is the worst case. Amounts vary much on one side "
            f"(sd of the logarithm 1) and little on the other (.1). {studies} studies per cell (standard error "
            f"{share(error_of_share(0.05, studies))} at .05)."
        ),
        header=("differences", *CELLS),
        rows=tuple((name, *map(share, found)) for name, found in rates.items()),
        findings=(
            "Where there is no difference, studies with 1, 3 and 6 claims that are looked at after every seed decide "
            f"something in {span(symmetric)} of cases (normal, heavy-tailed, and amounts on a log scale), by "
            f"{HORIZONS[-1]} seeds too; claims about 0/1 outcomes in {span(coins)}.",
            "An ordinary t test at every look would find a difference in "
            f"{span(rates['normal, ordinary t test at every look'])}, "
            f"and the sequential test of skewed amounts on their raw scale in {span(rates['amounts, raw scale'])}.",
        ),
    )


def at_the_edge(studies: int) -> Table:
    """Claims of sameness at the margin, and of smaller effects at the published one: how often they are wrong."""
    cells: dict[str, Callable[[FloatArray, float], FloatArray]] = {
        "same, confirmed": lambda gaps, edge: same_p(looks_at(gaps + edge), edge),
        "same, not confirmed": lambda gaps, edge: beyond_p(looks_at(gaps + edge), edge),
        "smaller than published": lambda gaps, edge: smaller_p(looks_at(gaps + edge), edge),
    }
    rows, found = [], []
    for index, (name, judge) in enumerate(cells.items()):
        rng = np.random.default_rng([2, index])
        draws = (rng.standard_normal((studies, HORIZONS[-1])) for _ in range(max(FAMILIES)))
        rates = family_rates(at_horizons(judge(gaps, 1.0)) for gaps in draws)
        found += rates
        rows.append((name, *map(share, rates)))
    return Table(
        name="Verdicts at the margin and at the published effect",
        about=(
            "The true difference is exactly the margin, or exactly the published effect: one standard deviation. "
            "Share of studies in which some claim of the family has this verdict, which is wrong there. Normal "
            f"differences; {studies} studies per cell."
        ),
        header=("verdict", *CELLS),
        rows=tuple(rows),
        findings=(
            f"Exactly at the margin or at the published effect, a wrong verdict of sameness, of its opposite or of "
            f"*smaller than published* is reached in {span(found)} of studies.",
        ),
    )


def some_true(studies: int) -> Table:
    """Six claims, of which three differences exist: how often Holm at every look decides one of the others."""
    rows, found = [], []
    for effect in EFFECTS:
        rng = np.random.default_rng([3, int(10 * effect)])
        p_CNH = np.stack(
            [
                at_horizons(beyond_p(looks_at(rng.standard_normal((studies, HORIZONS[-1])) + shift), 0.0))
                for shift in (effect, effect, effect, 0.0, 0.0, 0.0)
            ]
        )
        rejected = rejections(p_CNH)
        wrong = [float(rejected[3:, :, horizon].any(axis=0).mean()) for horizon in range(len(HORIZONS))]
        right = [float(rejected[:3, :, horizon].mean()) for horizon in range(len(HORIZONS))]
        found += wrong
        rows.append((f"{effect:g} sd", *map(share, wrong), *map(share, right)))
    return Table(
        name="Six claims of which three hold",
        about=(
            "Three of six differences exist, with this size in standard deviations of paired differences. Share of "
            "studies in which one of the other three is decided, and share of the existing ones that are decided. "
            f"Normal differences; {studies} studies per cell."
        ),
        header=("difference", *(f"wrong, {n} seeds" for n in HORIZONS), *(f"decided, {n} seeds" for n in HORIZONS)),
        rows=tuple(rows),
        findings=(f"If three of six differences exist, one of the others is decided in {span(found)} of studies.",),
    )


def rejections(p_C: FloatArray) -> FloatArray:
    """Return the claims that Holm rejects at `ALPHA`, from p-values with the claims along the first axis."""
    order = np.argsort(p_C, axis=0)
    steps = np.arange(p_C.shape[0], 0, -1).reshape(-1, *[1] * (p_C.ndim - 1))
    passed = np.logical_and.accumulate(np.take_along_axis(p_C, order, axis=0) * steps <= ALPHA, axis=0)
    rejected = np.empty_like(passed)
    np.put_along_axis(rejected, order, passed, axis=0)
    return rejected


def power(studies: int) -> Table:
    """Seeds until all claims of a family are decided, against a fixed number of seeds."""
    last = HORIZONS[1]
    rows, ratios = [], []
    for effect in EFFECTS:
        for size in FAMILIES:
            rng = np.random.default_rng([4, int(10 * effect), size])
            gaps_CNL = rng.standard_normal((size, studies, last)) + effect
            decided_NL = rejections(beyond_p(looks_at(gaps_CNL), 0.0)).all(axis=0)
            seeds_N = np.where(decided_NL.any(axis=1), decided_NL.argmax(axis=1) + 1, last)
            fixed = [fixed_seeds(effect, size, aim) for aim in (0.8, 0.95)]
            ratios.append(seeds_N.mean() / fixed[1])
            quantiles = np.quantile(seeds_N, [0.5, 0.9]).astype(int)
            shares = [share(float(decided_NL[:, n - 1].mean())) for n in HORIZONS[:2]]
            cells = (f"{seeds_N.mean():.1f}", *map(str, quantiles), *shares, *map(str, fixed))
            rows.append((f"{effect:g} sd", claims(size), *cells))
    return Table(
        name="Power and numbers of seeds",
        about=(
            "All claims of the family are true, with this difference in standard deviations of paired differences. A "
            f"study stops when all of them are decided, or after {last} seeds. Fixed: number of seeds at which a t "
            "test at 5 % over the number of claims decides a claim with probability .80 or .95. Normal differences; "
            f"{studies} studies."
        ),
        header=(
            "difference",
            "claims",
            "mean seeds",
            "median",
            "9 of 10 by",
            *(f"decided by {n}" for n in HORIZONS[:2]),
            "fixed, .80",
            "fixed, .95",
        ),
        rows=tuple(rows),
        labels=2,
        findings=(
            "With one claim, a difference of 3, 2, 1.5 or 1 standard deviation is decided after "
            f"{', '.join(row[2] for row in rows[::-1] if row[1] == claims(1))} seeds on average.",
            f"The mean number of seeds is {min(ratios):.2f} to {max(ratios):.2f} times the fixed number that decides "
            "95 % of claims, and the size of the difference need not be known in advance.",
        ),
    )


def fixed_seeds(effect: float, claims: int, aim: float) -> int:
    """Return the number of seeds at which a two-sided t test at `ALPHA`/claims has this power."""
    seeds = FIRST
    while True:
        critical = stats.t.ppf(1 - ALPHA / claims / 2, seeds - 1)
        if stats.nct.sf(critical, seeds - 1, effect * seeds**0.5) >= aim:
            return seeds
        seeds += 1


def intervals(studies: int) -> Table:
    """Sequential intervals: how often they hold the truth at all looks, and their width against one look."""
    rows = []
    found = []
    for index, (name, sample) in enumerate(
        {
            "normal": lambda rng, shape: rng.standard_normal(shape),
            "t with 3 degrees of freedom": lambda rng, shape: rng.standard_t(3, shape),
        }.items()
    ):
        rng = np.random.default_rng([5, index])
        looks = looks_at(sample(rng, (studies, HORIZONS[-1])))
        low_NL, high_NL = sequential_interval(looks)
        holds = [float(((low_NL <= 0) & (high_NL >= 0))[:, n - 1].mean()) for n in HORIZONS]
        ratios = []
        for n in HORIZONS:
            one_look = 2 * stats.t.ppf(0.975, n - 1) * looks.error_L[:, n - 1]
            ratios.append(f"{np.median((high_NL - low_NL)[:, n - 1] / one_look):.2f}")
        found += holds
        rows.append((name, *map(share, holds), *ratios))
    return Table(
        name="Sequential intervals",
        about=(
            "Share of studies whose 95 % interval holds the true difference at every look up to this number of seeds, "
            f"and median width relative to a t interval of all seeds that is looked at once. {studies} studies per row."
        ),
        header=("differences", *(f"holds, {n} seeds" for n in HORIZONS), *(f"width, {n} seeds" for n in HORIZONS)),
        rows=tuple(rows),
        findings=(f"Sequential 95 % intervals hold the truth at every look in {span(found)} of studies.",),
    )


PARTS = (false_differences, at_the_edge, some_true, power, intervals)
INTRO = """# Sequential verdicts

Studies with `study.until=decided` are looked at after every seed from the third on. How often is a verdict wrong, and
how many seeds does it need? Everything below is simulated and judged by the functions that judge a study
(`rlhf_lab/statistics/sequential.py`; [method](../design/044-sequential.md)).
"""


def calibration(paths: int, seed: int = 0) -> FloatArray:
    """Return the smallest weighted p-values of studies without an effect, sorted, (paths,)."""
    rng = np.random.default_rng(seed)
    count_L = np.arange(FIRST, LAST + 1.0)
    minima = []
    for start in range(0, paths, 10_000):
        looks = looks_at(rng.standard_normal((min(10_000, paths - start), LAST)))
        t_NL = (looks.mean_L / np.where(looks.error_L > 0, looks.error_L, np.inf))[:, FIRST - 1 :]
        minima.append((stdtr(count_L - 1, -t_NL) / np.sqrt(FIRST / count_L)).min(axis=1))
    return np.sort(np.concatenate(minima))


def main() -> int:
    parser = options(__doc__)
    parser.add_argument(
        "--calibrate", action="store_true", help="print the table of boundaries, from 4 million studies"
    )
    given = parser.parse_args()
    if given.calibrate:
        minima = calibration(4_000_000)
        print(*(f"({level:g}, {np.quantile(minima, level):.4g})," for level, _ in BOUNDARIES[:-1]), "(1, 1)")
        return 0
    studies = QUICK if given.quick else STUDIES
    tables = simulated([partial(part, studies) for part in PARTS])
    write_page(given, INTRO, tables, script="sequential")
    return 0


if __name__ == "__main__":
    sys.exit(main())
