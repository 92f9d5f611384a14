"""The sub-commands: `python -m rlhf_lab NAME …`. Each function receives the arguments after NAME; raises LabError."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.cli import summary
from rlhf_lab.cli.recipe_command import RecipeCommand
from rlhf_lab.config import command_line, registry, typed_sweep
from rlhf_lab.config.schema import paths_and_options
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.yaml_files import parse_yaml
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.sweeps import sweep


def report_command(arguments: Sequence[str]) -> None:
    """`report DIR`: write report.html of a run, a job or a study, finished or not."""
    if len(arguments) != 1:
        raise ConfigError("report needs one directory: python -m rlhf_lab report outputs/studies/NAME")
    # Commands import their implementation late: the table of commands must not import torch or plotting code.
    from rlhf_lab.reports.report import write_report

    # A typed sweep learns its metrics from completed jobs, which may be new since the last report.
    typed_sweep.choose_metrics(Path(arguments[0]))
    path = write_report(arguments[0])
    sweep.print_table(path.parent)
    console.print(f"report: {path}")


def audit_command(arguments: Sequence[str]) -> None:
    """`audit data=… data.path=… [model=… against=FILE,…]`: count the problems of a data set by reason.

    With a pretrained model (`model=hf model.path=DIR`), rows with more than `algorithm.max_length` of its tokens are
    counted too. `against` names files of evaluation prompts (columns prompt or question) that no training row may
    contain.
    """
    from rlhf_lab.data.audit import audit, render
    from rlhf_lab.data.duplicates import EvaluationItems, read_items

    files = [file for item in arguments if item.startswith("against=") for file in item[8:].split(",")]
    arguments = [item for item in arguments if not item.startswith("against=")]
    against = EvaluationItems(text for file in files for text in read_items(file)) if files else None
    config = command_line.config_of(arguments, [])
    corpus = registry.build("data", config.data)
    tokens: dict[str, Any] = {}
    if isinstance(config.model, HuggingFace) and config.model.path:
        from rlhf_lab.models.build import load_encoder

        encoder = load_encoder(config.model.path, config.model)
        tokens = {"encode": encoder.row, "eos_id": encoder.eos_id, "bos_id": encoder.tokenizer.bos_token_id}
        # an algorithm that trains on no rows has no maximum length; the report then says what it could not check
        tokens["max_length"] = getattr(config.algorithm, "max_length", None)
    console.print(render(audit(corpus, **tokens, against=against)))


def rescore_command(arguments: Sequence[str]) -> None:
    """`rescore DIR reward.weights=… …`: compare which saved responses other weightings of the reward select."""
    if not arguments or "=" in arguments[0]:
        raise ConfigError("rescore needs a run directory and weightings: rescore DIR 'reward.weights={bt:.7}' …")
    from rlhf_lab.evaluations.rescoring import read_responses, rescore
    from rlhf_lab.evaluations.weightings import weightings

    graphs, settings = weightings(arguments[0], arguments[1:])
    responses = read_responses(arguments[0], settings.policy)
    rescored = rescore(responses, graphs, settings.choose_from)
    summary.print_rescored([weighting.summary() for weighting in rescored])


def attack_command(arguments: Sequence[str]) -> RecipeCommand:
    """`attack [needs.reward=RUN | reward=NAME …] [needs.policy=RUN …]`: search for responses that a reward prefers.

    The same as +recipe=attack. The reward is a reward model (`needs.reward=RUN`), a function of yours
    (`reward=callable reward.terms.callable.function=FILE.py:NAME`), or any other option of `reward`, such as a judge.
    The search starts from responses of `needs.policy`, or from those of the data with `needs.policy=null`.
    `algorithm.max_gain=X` sets the exit status to 1 if the reward gains more than X standard deviations.
    The run directory has card.md, transcripts.jsonl, exploits.jsonl (pairs for data=pairs) and exploit_suite.yml (for
    eval_suite). docs/attack.md.
    """
    return RecipeCommand(["+recipe=attack", *arguments])


def monitor_command(arguments: Sequence[str]) -> None:
    """`monitor DIR [z=3 …]`: apply the reward-hacking detector to a run, or to a .jsonl or .csv file of samples."""
    from rlhf_lab.monitoring.replay import replay, summary, table

    changes = dict(item.split("=", 1) for item in arguments[1:] if "=" in item)
    if not arguments or len(changes) < len(arguments) - 1:
        raise ConfigError("monitor needs a run directory or a file, then settings: monitor outputs/runs/ppo-… z=3")
    settings = {key: parse_yaml(value, key) for key, value in changes.items()}
    judged = replay(Path(arguments[0]), settings)
    console.print(summary(judged), soft_wrap=False)
    console.print(table(judged))


def results_command(arguments: Sequence[str]) -> None:
    """`results check [DIR]`: list the pages of results whose code has changed since they were made.

    DIR is a directory of pages; the default is docs/results of a checkout. A page names the digest of every definition
    that computed its numbers. Code that only moved to another file does not count as changed. The exit status is always
    0.
    """
    from rlhf_lab.cli import results

    if arguments[:1] != ["check"] or len(arguments) > 2:
        raise ConfigError("results has one action: python -m rlhf_lab results check [DIR]")
    directory = Path(arguments[1]) if len(arguments) == 2 else results.results_directory()
    pages = results.check_pages(directory)
    width = max(len(page.name) for page in pages)
    for page in pages:
        console.print(f"{page.name:<{width}}  {page.remark}")
    console.print(results.summary(pages), soft_wrap=False)


def doctor_command(arguments: Sequence[str]) -> None:
    """`doctor [to=FILE.json] [+recipe=… model=… …]`: check the installation, and that this model trains correctly."""
    from rlhf_lab.doctor.examination import run

    run(arguments)


def compare_command(arguments: Sequence[str]) -> None:
    """`compare A B [policy=NAME] [to=DIR]`: compare two runs or jobs: paired test, settings, curves, cost.

    `policy=NAME` selects the policy of both runs, `policy='OF A,OF B'` one of each; the default is each run's own.
    `to` is the directory of compare.html; the default is comparisons/A-vs-B in `outputs`, or in the outputs of A.
    """
    problems: list[str] = []
    folders, options = paths_and_options(arguments, "compare", ("policy", "to", "outputs"), problems)
    if problems:
        raise ConfigError(problems)
    if len(folders) != 2:
        raise ConfigError("compare needs two runs, or jobs of studies: compare outputs/runs/A outputs/runs/B")
    from rlhf_lab.reports.comparison.report import compare, printed

    comparison = compare(*folders, **options)
    console.print(printed(comparison.view))
    console.print(f"comparison: {comparison.page}")


def gate_command(arguments: Sequence[str]) -> int:
    """`gate SUITE.yaml RUN [ACCEPTED | accept=true]`: check a run against the suite. Exit status: 0 passed, 1 failed.

    RUN is compared, prompt by prompt, with the run that was accepted last (outputs/accepted/SUITE.json), or with the
    run ACCEPTED. `accept=true`, without ACCEPTED, registers a run that passes. If there are too few prompts for a
    decision, the output says so. SUITE.yaml is a file, or `world`, the shipped suite of data=mini_hh.
    """
    problems: list[str] = []
    words, options = paths_and_options(arguments, "gate", ("accept",), problems)
    if problems:
        raise ConfigError(problems)
    accept = parse_yaml(options.get("accept", "false"), "accept")
    if len(words) not in (2, 3) or not isinstance(accept, bool):
        raise ConfigError("gate needs a suite and a run: gate SUITE.yaml outputs/runs/RUN [ACCEPTED | accept=true]")
    from rlhf_lab.gates.gate import judge
    from rlhf_lab.gates.table import lines, table

    decision = judge(words[0], words[1], words[2] if len(words) == 3 else None, accept=accept)
    console.print(table(decision))
    for line in lines(decision):
        console.print(line)
    return 0 if decision.passed else 1


def track_command(arguments: Sequence[str]) -> None:
    """`track RUN … tracker=wandb [tracker.project=NAME …]`: send stored runs or studies to a tracker.

    RUN is a run directory, or the directory of a study, which sends each of its completed jobs. A run that the tracker
    already has, in the same project and group, is skipped.
    """
    from rlhf_lab.cli.track import run

    run(arguments)


def plan_command(arguments: Sequence[str]) -> None:
    """`plan +recipe=… [override …] [cards=8,24,80]`: estimate the memory of each stage, and suggest how to make it fit.

    `cards` lists GPU sizes in GB, for which the minimum number is computed per stage. `runtime.device=cuda
    runtime.memory_gib=16` plans for a GPU that is not in this machine. `plan table [to=FILE.md]` prints published model
    sizes from 117M to 70B. Nothing is loaded.
    """
    from rlhf_lab.cli.plan import run

    run(arguments)


def dashboard_command(arguments: Sequence[str]) -> None:
    """`dashboard [FILE.json | --push entity/project]`: write the W&B dashboard to a file, or save it in a project."""
    is_push = list(arguments[:1]) == ["--push"]
    if len(arguments) > 1 + is_push or (is_push and len(arguments) == 1):
        raise ConfigError("dashboard needs a file to write or --push entity/project: dashboard FILE.json")
    from rlhf_lab.trackers import dashboard

    if is_push:
        console.print(f"dashboard: {dashboard.push(arguments[1])}")
        return
    path = Path(arguments[0] if arguments else "dashboard.json")
    if path.suffix != ".json":  # such as the directory of a run
        raise ConfigError(
            f"dashboard needs a name that ends in .json; for the page of a run or study use: report {path}"
        )
    console.print(f"dashboard: {dashboard.write(path)}")
