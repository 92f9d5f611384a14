"""The sub-commands `label`, `judge`, `leaderboard`, `safety` and `canaries`. They import heavy modules when run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_lab.config.schema import paths_and_options, whole_numbers
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError


def label_command(arguments: Sequence[str]) -> None:
    """`label RUN_OR_FILE [items=N …]`: open a page on which people choose the better one of two responses.

    RUN_OR_FILE is a run directory, judgements.jsonl or its directory, a file of pairs ({prompt, chosen, rejected} or
    {prompt, first, second}), or the label store of a run with reward.audit.labels_from=human. The order of the
    responses is random, and the judge's verdict is hidden until you answer.
    `policies='A,B'` compares two policies of a run; default: the first and the last.
    `items=N` selects N comparisons in an order set by `seed` (default 0). `annotator=NAME` separates the annotators.
    `to=FILE.sqlite` is the label store; default: a file next to the source. The same command resumes.
    `port=N` is the port of the page; default: any free port. `open=true` opens the browser.
    `usd_per_hour=30` prints the cost per label from the time that you take; without it, the time.
    `export=FILE.jsonl` writes the labels instead: as preference pairs for data=pairs, or all labels including ties with
    `format=labels`.
    """
    from rlhf_lab.packs.judging.labels.command import run

    run(arguments)


def judge_command(arguments: Sequence[str]) -> None:
    """`judge A [B] [judge=… judge.model=… …]`: compare the responses of two runs or files, or grade those of one.

    A and B are run directories, or JSONL files with the columns prompt and response. Their responses are matched by
    prompt, and the judge compares each pair in both orders. A alone is graded on a rubric.
    `policy=NAME` selects the policy of both runs, `policy='OF A,OF B'` one of each; default: the run's own.
    `items=N` selects N at random with `seed`; `reference=COLUMN` is a reference answer that counts as right;
    `rubric=FILE` has the criteria; `max_tokens` limits an answer. `to=DIR` is the output directory; default:
    judgements/A-vs-B in `outputs=DIR`, or in the outputs directory of A.
    `--dry-run` prints the number and the cost of the requests. The same command resumes where it stopped.
    The simulated judge reads the truth of the run's world; for files, name the world: `data=mini_hh data.seed=0`.
    """
    from rlhf_lab.packs.judging.judges.command import run

    run(arguments)


def leaderboard_command(arguments: Sequence[str]) -> None:
    """`leaderboard FILE_OR_DIR … [to=DIR] [truth=FILE] [baseline=NAME]`: rank the authors of the responses.

    FILE_OR_DIR is judgements.jsonl or its directory. After `judge A B`, `leaderboard A B` finds the judgements. Writes
    leaderboard.json and leaderboard.html to `to`, by default to leaderboards/NAME in `outputs=DIR` (default ./outputs).
    `truth` is a file of people's labels of some of the comparisons, for agreement, biases against people and corrected
    win rates. `judge=NAME` is the player whose model is also the judge.
    """
    problems: list[str] = []
    names = ("to", "outputs", "truth", "baseline", "judge")
    sources, options = paths_and_options(arguments, "leaderboard", names, problems)
    if problems:
        raise ConfigError(problems)
    if not sources:
        raise ConfigError(
            "leaderboard needs files or directories of judgements, such as leaderboard outputs/judgements/A-vs-B, or "
            "the runs that judge compared: leaderboard outputs/runs/A outputs/runs/B"
        )
    # imported after the checks: a wrong command should fail fast
    from rlhf_lab.packs.judging.leaderboard.report import leaderboard, printed

    written = leaderboard(
        sources,
        to=options.get("to"),
        outputs=options.get("outputs", "outputs"),
        truth=options.get("truth"),
        baseline=options.get("baseline"),
        judge=options.get("judge"),
    )
    console.print(printed(written.view))
    console.print(f"leaderboard: {written.page} and {written.numbers}")


def safety_command(arguments: Sequence[str]) -> None:
    """`safety RUN judge=… [judge.model=… …] [items=N] [--dry-run]`: grade the responses of a safety run with a judge.

    RUN is a directory of `+recipe=safety_eval`, graded by rules or by the truth. The judge answers for each response to
    an unsafe or a safe prompt whether it refuses, answers and is on topic, and how specific and convincing it is.
    Prints the rates of each policy by the judge, and the agreement with the run. `items=N` selects N responses at
    random with `seed`. `to=DIR` is the output directory; default: judgements/safety-RUN-DIGEST in the outputs directory
    of RUN, another one for another judge or selection. `--dry-run` prints the number and the cost of the requests.
    `judge.budget_usd` limits the cost. The same command resumes where it stopped.
    """
    from rlhf_lab.packs.judging.safety.regrade import run

    run(arguments)


def canaries_command(arguments: Sequence[str]) -> None:
    """`canaries FILE to=OUT.jsonl [n=10] [repeats=20] [seed=0]`: plant secret codes in training data.

    FILE has rows {prompt, completion} for data=sft, or {prompt, chosen, rejected} for data=pairs. OUT.jsonl has its
    rows and `repeats` rows for each of `n` codes, in random order. OUT.canaries.jsonl has the codes, and `n` more that
    are not planted. After training on OUT.jsonl, `+recipe=safety_eval algorithm.canary_file=OUT.canaries.jsonl`
    measures the fraction of codes that the model gives away.
    """
    problems: list[str] = []
    sources, options = paths_and_options(arguments, "canaries", ("to", "n", "repeats", "seed"), problems)
    if len(sources) != 1 or not options.get("to", "").endswith(".jsonl"):
        problems.append("canaries needs a file and an output: canaries train.jsonl to=planted.jsonl")
    numbers = whole_numbers(options, {"n": 10, "repeats": 20}, problems, minimum=1)
    numbers |= whole_numbers(options, {"seed": 0}, problems)
    if problems:
        raise ConfigError(problems)
    # imported after the checks: a wrong command should fail fast
    from rlhf_lab.packs.judging.safety.canaries import plant

    to = Path(options["to"])
    codes = plant(sources[0], to, count=numbers["n"], repeats=numbers["repeats"], seed=numbers["seed"])
    planted = f"{numbers['n']} codes, {numbers['repeats']} rows each"
    console.print(f"canaries: {planted}, in {to}; the codes are in {codes}")
