"""The sub-commands of judges, labels and leaderboards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from rlhf_lab.config.schema import did_you_mean
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError


def label_command(arguments: Sequence[str]) -> None:
    """`label RUN_OR_FILE [items=N …]`: a page on which people say which of two replies is better.

    RUN_OR_FILE is a run directory, judgements.jsonl or a folder that holds it, or a file of pairs ({prompt, chosen,
    rejected} or {prompt, first, second}). The order of replies is drawn, and what a judge said is not shown before.
    `policies='A,B'` compares these two of a run; without it its first and its last.
    `items=N` takes N comparisons, in an order drawn by `seed` (0). `annotator=NAME` keeps the labels of several apart.
    `to=FILE.sqlite` is where labels are kept; without it beside the source. The same command goes on where it ended.
    `port=N` is the page's, without it a free one; `open=true` opens the browser.
    `export=FILE.jsonl` writes the labels instead: as preference pairs for data=pairs, or with `format=labels` all
    labels, ties too.
    """
    from rlhf_lab.packs.judging.labels.command import run

    run(arguments)


def judge_command(arguments: Sequence[str]) -> None:
    """`judge A [B] [judge=… judge.model=… …]`: which of two runs or files has the better replies; grades of one.

    A and B are run directories, or JSONL files with the columns prompt and response; their replies are matched by
    prompt, and every comparison is asked in both orders. A alone is graded on a rubric.
    `policy=NAME` is the policy of both runs, `policy='OF A,OF B'` one of each; without it the run's own.
    `items=N` draws N at random with `seed`; `reference=COLUMN` is an answer that is taken as right; `rubric=FILE` has
    the criteria; `max_tokens` bounds an answer. `to=FOLDER` is where it is written; without it judgements/A-vs-B in
    `outputs=FOLDER`, or in the outputs that A lies in.
    `--dry-run` says how many requests that is, and what they may cost. The same command goes on where it stopped.
    The simulated judge reads the truth of the run's world; for files, name it: `data=mini_hh data.seed=0`.
    """
    from rlhf_lab.packs.judging.judges.command import run

    run(arguments)


def leaderboard_command(arguments: Sequence[str]) -> None:
    """`leaderboard FILE_OR_FOLDER … [to=FOLDER] [truth=FILE] [baseline=NAME]`: ranks who wrote the replies.

    Reads judgements.jsonl; writes leaderboard.json and leaderboard.html to `to`, or to leaderboards/NAME in
    `outputs=FOLDER` (without it ./outputs). `truth` is a file of people's labels of some
    of the comparisons: agreement, biases against people, corrected win rates. `judge=NAME` is the player whose model
    is also the judge. `prior=4` rates players that never lost or never won, by a Gaussian prior with that standard
    deviation, in logits.
    """
    names = ("to", "outputs", "truth", "baseline", "judge", "prior")
    # A folder's name may contain an equals sign.
    sources = [item for item in arguments if "=" not in item or Path(item).exists()]
    options = dict(item.split("=", 1) for item in arguments if item not in sources)
    if unknown := [name for name in options if name not in names]:
        hints = [f"{name} is not an option of leaderboard{did_you_mean(name, names)}" for name in unknown]
        raise ConfigError(hints)
    if not sources:
        raise ConfigError(
            "leaderboard takes files or folders of judgements: leaderboard outputs/runs/A/judgements.jsonl"
        )
    prior = yaml.safe_load(options["prior"]) if "prior" in options else None
    if prior is not None and (not isinstance(prior, (int, float)) or isinstance(prior, bool) or not prior > 0):
        raise ConfigError(
            f"prior={options['prior']} must be a number above 0: a standard deviation in logits, such as 4"
        )
    from rlhf_lab.packs.judging.leaderboard.report import leaderboard, printed

    written = leaderboard(
        sources,
        to=options.get("to"),
        outputs=options.get("outputs", "outputs"),
        truth=options.get("truth"),
        baseline=options.get("baseline"),
        judge=options.get("judge"),
        prior_sd=None if prior is None else float(prior),
    )
    console.print(printed(written.view))
    console.print(f"leaderboard: {written.page} and {written.numbers}", soft_wrap=True)
