"""Over-optimisation curves of a study: proxy and gold against √KL along training, with a fitted curve per level.

A study enables them with `curves: overoptimization`. Every evaluated policy of every completed job is a point: its gain
over the first policy of the same run, at d = √KL. Best-of-n levels use the curve of best-of-n, all others that of
training. `statistics/overoptimization.py` describes both curves and their intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.yaml_files import read_mapping
from rlhf_lab.results.rundir import algorithm_settings
from rlhf_lab.results.wording import compact, markdown_section, signed
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.overoptimization import Fit, Form, SeedFits, fit_over_seeds
from rlhf_lab.studies.frame import Study
from rlhf_lab.training.settings import StageSettings

NAME = "overoptimization"
HEADINGS = (
    "level",
    "curve",
    "over",
    "α",
    "β",
    "KL at peak, nats",
    "gold gained there",
    "R²",
    "against the other curve",
)
FORMULAS: dict[Form, str] = {"bon": "d(α − βd)", "rl": "d(α − β ln d)"}
NOTE = (
    "d = √KL, nats per response; gain over the first policy of the same run. One curve per seed, t interval over "
    "seeds (the KL is a geometric mean). The curves are those of arXiv:2210.10760. “against the other curve”: "
    "log-likelihood of a seed's gains under the curve fitted to all other seeds, minus that under d(α − βd) for "
    "training or d(α − β ln d) for best-of-n, in nats per policy; above 0 the row's own curve predicts better."
)


@dataclass(frozen=True)
class LevelCurve:
    """Points and fitted curves of one level.

    Attributes:
        level: label of the level.
        form: form of the curve ("bon" or "rl").
        points: one row per policy: seed, position, d (√nats), proxy and gold (gains; NaN if unknown).
        gold, proxy: fits of the two gains; None if there are too few points.
        problem: reason why gold has no fit; empty if it has one.
    """

    level: str
    form: Form
    points: pd.DataFrame
    gold: SeedFits | None
    proxy: SeedFits | None
    problem: str = ""


def level_curves(study: Study) -> list[LevelCurve]:
    curves = []
    for level in study.levels:
        points = _gain_points(study, level)
        if not len(points):
            continue
        form = _curve_form(study, level)
        gold, problem = _fit_metric(form, points, "gold")
        proxy, _ = _fit_metric(form, points, "proxy")
        curves.append(LevelCurve(study.label(level), form, points, gold, proxy, problem))
    return curves


def _gain_points(study: Study, level: str) -> pd.DataFrame:
    """Return every policy of a level after the first of its run, as gains over that first policy."""
    rows = study.policies
    if rows.empty or "kl" not in rows:
        return pd.DataFrame()
    points_of_runs = []
    for _, run in rows[rows["level"] == level].groupby("index"):
        first = run[run["position"] == 0]
        later = run[run["position"] > 0]
        # A small KL estimated from samples may be negative.
        points = later[["seed", "position"]].assign(d=np.sqrt(later["kl"].clip(lower=0)))
        for metric in ("proxy", "gold"):
            has_start = metric in run and len(first)
            points[metric] = later[metric] - first[metric].iloc[0] if has_start else math.nan
        points_of_runs.append(points)
    return pd.concat(points_of_runs, ignore_index=True).dropna(subset="d") if points_of_runs else pd.DataFrame()


def _curve_form(study: Study, level: str) -> Form:
    completed = study.completed
    for run in completed.loc[completed["level"] == level, "run"]:
        file = Path(run) / "config.yaml"
        if file.is_file():
            config = read_mapping(file, "the settings of a run")
            kind = str((config.get("algorithm") or {}).get("kind"))
            return algorithm_settings(kind).evidence.gain_curve
    return StageSettings.evidence.gain_curve


def _fit_metric(form: Form, points: pd.DataFrame, metric: str) -> tuple[SeedFits | None, str]:
    """Return (fits over the seeds, ""), or (None, reason why there are none)."""
    if points[metric].isna().all():
        return None, f"no {metric} reward is known"
    try:
        return fit_over_seeds(form, points["d"], points[metric], points["seed"].astype(str)), ""
    except NumericError:
        return None, "no run has two policies away from its start; evaluate several checkpoints along training"


def fit_rows(curves: Sequence[LevelCurve]) -> list[tuple[str, ...]]:
    """Return the table of gold fits as text, in the order of HEADINGS: one row per level."""
    rows: list[tuple[str, ...]] = []
    for curve in curves:
        if curve.gold is None:
            rows.append((curve.level, FORMULAS[curve.form], curve.problem, *["–"] * 6))
            continue
        seed_fits = curve.gold.fits
        mean_r2 = float(np.mean([fit.r_squared for fit in seed_fits]))
        seeds = len(seed_fits) + curve.gold.left_out
        seed_count = f"{seeds} seed{'s' * (seeds != 1)}"
        if curve.gold.left_out:
            seed_count = f"{len(seed_fits)} of {seed_count}"
        advantage = "–" if curve.gold.advantage is None else signed(curve.gold.advantage)
        summary = curve.gold.over_seeds
        kl = gain = _turning_count(seed_fits)
        if summary.peak_kl and summary.peak_gain and not any(fit.falls for fit in seed_fits):
            kl, gain = _on_ratio_scale(summary.peak_kl), compact(summary.peak_gain)
            if not all(fit.position == "inside" for fit in seed_fits):
                kl += " (extrapolated)"
        alpha, beta = compact(summary.alpha), compact(summary.beta)
        form = FORMULAS[curve.form]
        rows.append((curve.level, form, seed_count, alpha, beta, kl, gain, compact(mean_r2), advantage))
    return rows


def _turning_count(fits: Sequence[Fit]) -> str:
    """Return in words how many curves fall or have a peak; used when the mean peak is undefined."""
    falling = sum(fit.falls for fit in fits)
    turning = sum(math.isfinite(fit.peak_kl) and not fit.falls for fit in fits)
    if len(fits) == 1:
        return "falls from the start" if falling else "no turn"
    return f"{falling} of {len(fits)} fall from the start" if falling else f"{turning} of {len(fits)} turn"


def _on_ratio_scale(value: Estimate) -> str:
    """Format an estimate on a ratio scale: if the bounds differ widely, each has its own number of digits."""
    if math.isfinite(value.low) and not math.isfinite(value.high):
        return f"{compact(value.mean)} [{compact(value.low)}, ∞]"
    if not value.bounded or value.high < 2 * value.low:
        return compact(value)
    numbers = (value.mean, value.low, value.high)
    mean, low, high = ("<0.01" if 0 <= number < 0.005 else compact(number) for number in numbers)
    return f"{mean} [{low}, {high}]"


def curve_conclusion(study: Study) -> str:
    if study.curves != NAME:
        return ""
    if not study.has_gold:
        return "No gold reward is known here, so the KL at which it turns is unknown."
    return " ".join(_level_sentence(curve) for curve in level_curves(study))


def _level_sentence(curve: LevelCurve) -> str:
    """Return the KL at which gold has its maximum, or the KL up to which it has none."""
    if curve.gold is None:
        return f"No curve is fitted with {curve.level}: {curve.problem}."
    fits = curve.gold.fits
    over_seeds = curve.gold.over_seeds
    falling = sum(fit.falls for fit in fits)
    # A maximum before the first evaluated policy also means that gold was seen to fall.
    turned = [fit for fit in fits if fit.position in ("inside", "before") and not fit.falls]
    if falling == len(fits):
        doubt = "" if over_seeds.alpha.excludes_zero else " The interval of α contains 0, so a flat curve also fits."
        return f"Gold with {curve.level} falls from the start.{doubt}"
    if not turned and not falling:
        observed_kl = compact(min(fit.d_max for fit in fits) ** 2)  # d = √KL; the range that every seed covers
        beyond = sum(fit.position == "beyond" for fit in fits)
        farther = f"; {beyond} of {len(fits)} fitted curves turn farther out, which is extrapolation" if beyond else ""
        return f"No turn of gold is seen with {curve.level} up to KL {observed_kl}{farther}."
    # The interval needs a maximum in every seed; otherwise only a geometric mean is reported.
    if len(turned) < len(fits) or over_seeds.peak_kl is None:
        parts = [f"falls from the start in {falling}"] if falling else []
        if turned:
            geometric_mean_kl = math.exp(float(np.mean([2 * fit.log_peak for fit in turned])))
            parts.append(f"turns near KL {compact(geometric_mean_kl)} in {len(turned)}")
        return f"Gold with {curve.level} {' and '.join(parts)} of {len(fits)} seeds; no interval."
    unsure = over_seeds.beta.bounded and over_seeds.beta.low <= 0
    doubt = " The interval of β contains 0, so a curve without a maximum also fits." if unsure else ""
    early = sum(fit.position == "before" for fit in fits)
    before = f", in {early} of {len(fits)} seeds before the first evaluated policy" if early else ""
    return f"Gold with {curve.level} turns at KL {_on_ratio_scale(over_seeds.peak_kl)}{before}.{doubt}"


def curve_markdown(study: Study) -> str:
    curves = level_curves(study) if study.curves == NAME else []
    note = f"Figure: `{NAME}.svg`. {NOTE}"
    return markdown_section("Over-optimisation", note, HEADINGS, fit_rows(curves), "lllrrrrrr")
