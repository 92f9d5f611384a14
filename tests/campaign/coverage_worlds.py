"""Coverage of a study's intervals in the dialogue world: seeds that repeat everything, one kept corpus, fixed data."""

from __future__ import annotations

from dataclasses import dataclass

import cheap_experiment as experiment
import memory_study
import numpy as np
import pandas as pd
from covering import BAR_WORDS, SEEDS, Table, Tally, inside, span
from scipy import stats

from rlhf_lab.core.types import FloatArray
from rlhf_lab.results.gains import PROMPT
from rlhf_lab.statistics.inference import seed_mean, wilson
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.replicates import level_difference, level_mean

TEST_PAIRS = 150
WORDS = {
    "gold": "gold of the choice (mean)",
    "accuracy": "accuracy (rate)",
    "gold_agreement": "agreement with gold (rate)",
    "verbose": "verbose rate of the choice",
    "garble": "garble rate of the choice (small)",
}
FEWER, MORE, FAILING = experiment.LEVELS
KINDS = (f"{FEWER} pairs", f"{MORE} pairs", "difference", f"difference from {FAILING} pairs")
"""Values printed of a metric: the means of two levels, their difference, and that from a level that hardly trains."""
TRAIN_SEED = 10_000
"""Seeds of training, disjoint from those of the data."""


@dataclass(frozen=True)
class Pool:
    """Replications of the experiment.

    Attributes:
        redrawn: (replications, levels, metrics, 4); each has its own metadata, corpus, labels and test prompts.
        kept: (laboratories, training seeds, levels, metrics, 4); a laboratory keeps the data of one replication and
            only trains again.
    """

    redrawn: FloatArray
    kept: FloatArray

    @property
    def truth_LM(self) -> FloatArray:
        return self.redrawn[..., 0].mean(axis=0)


def draw_pool(replications: int, laboratories: int) -> Pool:
    redrawn, kept = [], []
    for seed in range(replications):
        world = experiment.draw_world(seed)
        corpus = experiment.draw_split(world, max(experiment.LEVELS), "train", seed)
        test = experiment.draw_split(world, TEST_PAIRS, "test", seed)
        redrawn.append(experiment.measure_levels(corpus, test, TRAIN_SEED + seed))
        if seed < laboratories:
            again = range(TRAIN_SEED, TRAIN_SEED + max(SEEDS))
            kept.append([experiment.measure_levels(corpus, test, train_seed) for train_seed in again])
    return Pool(np.array(redrawn), np.array(kept))


def tally_study(tally: Tally, study: Study, truth_LM: FloatArray, column: str) -> None:
    """Count the printed intervals of every metric."""
    fewer, more, failing = study.levels
    for m, metric in enumerate(study.metrics):
        tally.add((metric, KINDS[0], column), level_mean(study, metric, fewer), truth_LM[0, m])
        tally.add((metric, KINDS[1], column), level_mean(study, metric, more), truth_LM[1, m])
        for kind, versus, position in ((KINDS[2], fewer, 0), (KINDS[3], failing, 2)):
            comparison = level_difference(study, metric, more, versus)
            assert comparison is not None
            tally.add((metric, kind, column), comparison.difference, truth_LM[1, m] - truth_LM[position, m])


def replications(pool: Pool, studies: int, rng: np.random.Generator) -> Table:
    """Compare seeds that repeat the full experiment with seeds that only train again on one corpus and one test set."""
    tally = Tally()
    for count in SEEDS:
        for _ in range(studies):
            chosen_S = rng.choice(len(pool.redrawn), count, replace=False)
            values_LSM4 = pool.redrawn[chosen_S].swapaxes(0, 1)
            study = memory_study.build(values_LSM4, experiment.METRICS, experiment.LEVELS, memory_study.REDRAWN)
            tally_study(tally, study, pool.truth_LM, f"new {count}")
        for runs in pool.kept:
            values_LSM4 = runs[:count].swapaxes(0, 1)
            study = memory_study.build(values_LSM4, experiment.METRICS, experiment.LEVELS, memory_study.KEPT)
            tally_study(tally, study, pool.truth_LM, f"old {count}")
    keys = [(metric, kind) for metric in experiment.METRICS for kind in KINDS]
    columns = [f"{way} {count}" for way in ("new", "old") for count in SEEDS]
    rows = tuple((WORDS[key[0]], key[1], *(tally.cell((*key, column)) for column in columns)) for key in keys)
    return Table(
        name="Replications in the dialogue world",
        about=(
            f"A linear reward model is trained on {FEWER} or {MORE} labelled pairs, and on {FAILING}, of which it "
            f"hardly learns; it chooses the better reply of {TEST_PAIRS} test pairs. {len(pool.redrawn)} replications "
            "draw facts, "
            "corpus, labels and test prompts from their seed; their mean is the truth. *Repeated*: "
            f"{studies} studies, each of seeds drawn from these replications, judged as the page of a study judges "
            f"them. *Kept*: {len(pool.kept)} studies that keep the data of one replication and only train again with "
            "every seed, as studies did before, with their t interval over seeds."
        ),
        header=("metric", "interval of", *(f"{way}, {n} seeds" for way in ("repeated", "kept") for n in SEEDS)),
        rows=rows,
        labels=2,
        is_coverage=True,
        findings=_findings(tally, pool),
    )


def _findings(tally: Tally, pool: Pool) -> tuple[str, ...]:
    def coverages(way: str, kinds: tuple[str, ...]) -> list[float]:
        keys = [(metric, kind) for metric in experiment.METRICS for kind in kinds]
        return [tally.coverage((*key, f"{way} {count}")) for key in keys for count in SEEDS]

    means, differences, skewed = (coverages("new", kinds) for kinds in (KINDS[:2], KINDS[2:3], KINDS[3:]))
    old, old_differences = coverages("old", KINDS[:2]), coverages("old", KINDS[2:3])
    few, _, many = (np.mean(old[position :: len(SEEDS)]) for position in range(len(SEEDS)))
    trend = "worse" if many < few else "no worse"
    return (
        f"Where each seed repeats the experiment, 95 % intervals of means and rates hold the truth in {span(means)} of "
        f"studies, those of differences in {span(differences)}; {inside(means + differences)} coverages lie in "
        f"{BAR_WORDS}.",
        f"Differences from a level that hardly trains are skewed, and covered in {span(skewed)}.",
        f"With one corpus and one test set for all seeds, as before, intervals of means and rates held it in "
        f"{span(old)} of studies, those of differences in {span(old_differences)}, and more seeds made it {trend}.",
        skewness_of_differences(pool),
    )


def skewness_of_differences(pool: Pool) -> str:
    """Describe the skewness of differences, which a t interval of few differences assumes to be small."""
    means_RLM = pool.redrawn[..., 0]
    plain_M, failing_M = (stats.skew(means_RLM[:, 1] - means_RLM[:, position]) for position in (0, 2))
    words = [
        f"{WORDS[name]} {simple:+.1f} and {failing:+.1f}"
        for name, simple, failing in zip(experiment.METRICS, plain_M, failing_M, strict=True)
    ]
    return (
        "t intervals, and with them the verdicts, assume differences that are not strongly skewed; their skewness over "
        f"replications, from {FEWER} and from {FAILING} pairs, is {', '.join(words)}."
    )


@dataclass(frozen=True)
class GivenCorpus:
    """One corpus with many trainings and many prompts: the population from which studies of fixed data are sampled.

    Attributes:
        values: metric → (levels, training seeds, prompts) of the choice; `accuracy` is 0 or 1.
    """

    values: dict[str, FloatArray]

    def truth(self, metric: str) -> FloatArray:
        """Mean over training seeds and prompts, per level."""
        return self.values[metric].mean(axis=(1, 2))


GIVEN_METRICS = ("gold", "verbose", "accuracy")
"""gold and verbose are stored by prompt; accuracy is only a rate with the error that each run states."""


def draw_given(seed: int, trainings: int, prompts: int) -> GivenCorpus:
    world = experiment.draw_world(seed)
    corpus = experiment.draw_split(world, max(experiment.LEVELS), "train", seed)
    test = experiment.draw_split(world, prompts, "test", seed)
    values: dict[str, list[FloatArray]] = {name: [] for name in GIVEN_METRICS}
    sides = experiment.sides(test.pairs)
    for count in experiment.LEVELS:
        found: dict[str, list[FloatArray]] = {name: [] for name in GIVEN_METRICS}
        for training in range(trainings):
            weights_F = experiment.train(corpus.features_NF[:count], TRAIN_SEED + training)
            margin_N = test.features_NF @ weights_F
            chosen = experiment.choices(margin_N, sides)
            found["gold"].append(chosen["gold"])
            found["verbose"].append(chosen["verbose"])
            found["accuracy"].append((margin_N > 0).astype(float))
        for name, rows in found.items():
            values[name].append(np.array(rows))
    return GivenCorpus({name: np.array(levels) for name, levels in values.items()})


def given_study(corpus: GivenCorpus, seeds: int, prompts: int, rng: np.random.Generator) -> Study:
    """A study on a fixed corpus: trainings and prompts sampled independently, seeds × prompts crossed.

    Sampling is with replacement, so that the sample comes from a population with exactly the known truth.
    """
    run_S = rng.integers(corpus.values["gold"].shape[1], size=seeds)
    prompt_P = rng.integers(corpus.values["gold"].shape[2], size=prompts)
    tables = {name: values[:, run_S][:, :, prompt_P] for name, values in corpus.values.items()}
    levels = len(experiment.LEVELS)
    values_LSM4 = np.zeros((levels, seeds, len(GIVEN_METRICS), 4))
    index = pd.MultiIndex.from_arrays([np.arange(prompts), [f"prompt {p}" for p in prompt_P]], names=PROMPT)
    by_prompt = {}
    for job in range(levels * seeds):
        level, seed = divmod(job, seeds)
        rows = {name: table[level, seed] for name, table in tables.items()}
        by_prompt[job] = pd.DataFrame({name: rows[name] for name in ("gold", "verbose")}, index=index)
        for m, name in enumerate(GIVEN_METRICS):
            values_LSM4[level, seed, m] = _stored(name, rows[name])
    return memory_study.build(values_LSM4, GIVEN_METRICS, experiment.LEVELS, memory_study.GIVEN, by_prompt)


def _stored(name: str, values_P: FloatArray) -> tuple[float, float, float, float]:
    """Return what a run stores of a metric of its own responses."""
    if name == "gold":
        return experiment.numbers(seed_mean(values_P))
    return experiment.numbers(wilson(int(values_P.sum()), values_P.size))


def given_data(corpora: int, trainings: int, population: int, sizes: tuple[int, ...], studies: int) -> Table:
    """Studies of fixed corpora: intervals that cover other trainings and other prompts."""
    tally = Tally()
    rng = np.random.default_rng(2)
    for seed in range(corpora):
        corpus = draw_given(seed, trainings, population)
        truth_LM = np.stack([corpus.truth(name) for name in GIVEN_METRICS], axis=1)
        for count in SEEDS:
            for prompts in sizes:
                for _ in range(studies):
                    study = given_study(corpus, count, prompts, rng)
                    tally_study(tally, study, truth_LM, f"{count} {prompts}")
    keys = [(metric, kind) for metric in GIVEN_METRICS for kind in KINDS]
    columns = [f"{count} {prompts}" for prompts in sizes for count in SEEDS]
    by_prompt, by_error = (
        [tally.coverage((metric, kind, column)) for metric in metrics for kind in KINDS for column in columns]
        for metrics in (GIVEN_METRICS[:2], GIVEN_METRICS[2:])
    )
    return Table(
        name="Given data in the dialogue world",
        about=(
            f"{corpora} corpora are given, each with {trainings} trainings per level on it and a population of "
            f"{population} prompts; the truth of a corpus is the mean over all of them. A study takes 3, 5 or 10 "
            f"trainings and {', '.join(map(str, sizes))} prompts, the same prompts for all; {studies} studies per "
            "corpus and cell. Gold and verbose rate are known by prompt (crossed random effects), accuracy only as a "
            "rate with each run's error, which is added to the spread between seeds."
        ),
        header=("metric", "interval of", *(f"{prompts} prompts, {n} seeds" for prompts in sizes for n in SEEDS)),
        rows=tuple((WORDS[key[0]], key[1], *(tally.cell((*key, column)) for column in columns)) for key in keys),
        labels=2,
        is_coverage=True,
        findings=(
            f"On given data, intervals by seeds × prompts hold the corpus's truth in {span(by_prompt)} of studies "
            f"({inside(by_prompt)} in {BAR_WORDS}); where a run states only its own error, in {span(by_error)}.",
        ),
    )
