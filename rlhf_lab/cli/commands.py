"""The sub-commands: `python -m rlhf_lab NAME …`. Each takes the words behind its name and raises LabError."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from rlhf_lab.cli import summary
from rlhf_lab.config import check, compose, registry, typed_sweep
from rlhf_lab.config.overrides import forced
from rlhf_lab.config.schema import did_you_mean
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.sweeps import sweep


def report_command(arguments: Sequence[str]) -> None:
    """`report FOLDER`: write report.html of a run or a study, finished or not."""
    if len(arguments) != 1:
        raise ConfigError("report takes one folder: python -m rlhf_lab report outputs/studies/NAME")
    from rlhf_lab.reports.report import write_report

    typed_sweep.choose_metrics(Path(arguments[0]))
    path = write_report(arguments[0])
    sweep.print_table(path.parent)
    console.print(f"report: {path}")


def audit_command(arguments: Sequence[str]) -> None:
    """`audit data=… data.path=… [against=FILE,…]`: what is wrong with a data set, counted by reason.

    `against` are files of evaluation prompts (columns prompt or question) that no training row may hold.
    """
    from rlhf_lab.data.audit import audit
    from rlhf_lab.data.audit_report import render
    from rlhf_lab.data.contamination import EvaluationItems, read_items

    files = [file for item in arguments if item.startswith("against=") for file in item[8:].split(",")]
    arguments = [item for item in arguments if not item.startswith("against=")]
    against = EvaluationItems(text for file in files for text in read_items(file)) if files else None
    problems: list[str] = []
    usable = compose.usable_overrides([forced(argument) for argument in arguments], problems)
    if problems:
        raise ConfigError(problems)
    values = compose.compose([*(override.input_line or "" for override in usable), "+recipe=sft"])
    # Any data may be examined, also those that no demonstration, pair or answer is in.
    config = check.effective({**values, "study": None})
    console.print(render(audit(registry.build("data", config.data), against=against)))


def rescore_command(arguments: Sequence[str]) -> None:
    """`rescore FOLDER reward.weights=… …`: what other weightings of the reward would choose among saved replies."""
    if not arguments or "=" in arguments[0]:
        raise ConfigError("rescore takes a run directory and weightings: rescore FOLDER 'reward.weights={bt:.7}' …")
    from rlhf_lab.evaluations.rescoring import read_replies, rescore
    from rlhf_lab.evaluations.weightings import weightings

    graphs, settings = weightings(arguments[0], arguments[1:])
    replies = read_replies(arguments[0], settings.policy)
    rescored = rescore(replies, graphs, settings.choose_from)
    summary.print_rescored([weighting.summary() for weighting in rescored])


def monitor_command(arguments: Sequence[str]) -> None:
    """`monitor FOLDER [z=3 …]`: what the reward-hacking detector says of a run, or of a .jsonl or .csv of samples."""
    from rlhf_lab.monitoring.replay import replay, summary, table

    changes = dict(item.split("=", 1) for item in arguments[1:] if "=" in item)
    if not arguments or len(changes) < len(arguments) - 1:
        raise ConfigError("monitor takes a run directory or a file, then settings: monitor outputs/runs/ppo-… z=3")
    settings = {key: yaml.safe_load(value) for key, value in changes.items()}
    judged = replay(Path(arguments[0]), settings)
    console.print(summary(judged))
    console.print(table(judged))


def doctor_command(arguments: Sequence[str]) -> None:
    """`doctor [to=FILE.json] [+recipe=… model=… …]`: is the installation sound, and training on this model correct?"""
    from rlhf_lab.doctor.examination import run

    run(arguments)


def compare_command(arguments: Sequence[str]) -> None:
    """`compare A B [policy=NAME] [to=FOLDER]`: two runs, jobs or studies: a paired test, settings, curves, cost.

    `policy=NAME` is the policy of both runs, `policy='OF A,OF B'` one of each; without it the run's own.
    `to` is the folder of compare.html; without it comparisons/A-vs-B in `outputs`, or in the outputs that A lies in.
    """
    # A folder's name may contain an equals sign.
    folders = [item for item in arguments if "=" not in item or Path(item).is_dir()]
    options = dict(item.split("=", 1) for item in arguments if item not in folders)
    names = ("policy", "to", "outputs")
    if unknown := [name for name in options if name not in names]:
        hints = [f"{name} is not an option of compare{did_you_mean(name, names)}" for name in unknown]
        raise ConfigError(hints)
    if len(folders) != 2:
        raise ConfigError("compare takes two runs or two studies: compare outputs/runs/A outputs/runs/B [policy=NAME]")
    from rlhf_lab.reports.comparison.report import compare, printed

    comparison = compare(*folders, **options)
    console.print(printed(comparison.view))
    console.print(f"comparison: {comparison.page}", soft_wrap=True)


def gate_command(arguments: Sequence[str]) -> int:
    """`gate SUITE.yaml RUN [ACCEPTED | accept=true]`: does a run hold what the suite demands? Status 0 yes, 1 no.

    RUN is compared, prompt by prompt, with the run that was accepted last (outputs/accepted/SUITE.json), or with the
    run ACCEPTED. `accept=true`, without ACCEPTED, registers a run that passes. A comparison that too few prompts leave
    undecided is said to be. SUITE.yaml is a file, or `world`, the shipped suite of data=mini_hh.
    """
    words = [item for item in arguments if "=" not in item or Path(item).exists()]
    options = dict(item.split("=", 1) for item in arguments if item not in words)
    if unknown := [name for name in options if name != "accept"]:
        raise ConfigError([f"{name} is not an option of gate{did_you_mean(name, ('accept',))}" for name in unknown])
    accept = yaml.safe_load(options.get("accept", "false"))
    if len(words) not in (2, 3) or not isinstance(accept, bool):
        raise ConfigError("gate takes a suite and a run: gate SUITE.yaml outputs/runs/RUN [ACCEPTED | accept=true]")
    from rlhf_lab.gates.gate import judge
    from rlhf_lab.gates.table import lines, table

    decision = judge(words[0], words[1], words[2] if len(words) == 3 else None, accept=accept)
    console.print(table(decision))
    for line in lines(decision):
        console.print(line, markup=False, soft_wrap=True)
    return 0 if decision.passed else 1


def publish_command(arguments: Sequence[str]) -> None:
    """`publish RUN to=FOLDER | to=hub:OWNER/NAME [dtype=bfloat16 …]`: the model with a card made from its run.

    The run must be complete and whole, its code and data named; the published files must give the saved model's
    numbers, and hold no secret, path of this machine, pickle or row of data. A repository of the hub is private unless
    `public=true`. `dtype=bfloat16` rounds the weights; `adapter=true` publishes a LoRA adapter alone, and
    `base=OWNER/NAME` says where its base is published. `license=ID` names a licence.
    `gate=SUITE.yaml` holds the run to a suite, or `gate_run=FOLDER`, the run that asked its model.
    `despite=hard_stop,smoke,unnamed_code,failed_gate` publishes a run that is otherwise refused for these, and its card
    says so. docs/publish.md.
    """
    from rlhf_lab.cli.publish import run

    run(arguments)


def vllm_command(arguments: Sequence[str]) -> int:
    """`vllm [setup | serve] [folder=FOLDER …]`: vLLM in an environment of its own: is it there, make it, serve a model.

    `setup` makes the environment, once: pinned packages in the user's cache, in $RLHF_LAB_VLLM or in `folder`;
    `device=cpu` or `cuda`; `timeout_s=N` gives installing more time than 3600 s. rollout.mode=spawn needs nothing else.
    `serve model=FOLDER port=8000` runs a server for rollout.mode=server until it is ended; trainers send the weights.
    More: `host=127.0.0.1 dtype=float32 context_tokens=N tensor_parallel=1 gpu_memory=0.9`. docs/vllm.md.
    """
    from rlhf_lab.cli.vllm import run

    return run(arguments)


def plan_command(arguments: Sequence[str]) -> None:
    """`plan +recipe=… [override …] [cards=8,24,80]`: what each stage needs of memory, and what makes it fit.

    `cards` are GB of GPUs of which the fewest are counted for each stage. `runtime.device=cuda runtime.memory_gib=16`
    plans for a GPU that is not here. `plan table [to=FILE.md]` has published sizes from 117M to 70B, `plan table
    recipes` the fewest cards for each recipe on them. Nothing is loaded.
    """
    from rlhf_lab.cli.plan import run

    run(arguments)


def explain_command(arguments: Sequence[str]) -> None:
    """`explain [algorithm=ppo | algorithm.beta | evaluation | +recipe=ppo …]`: what can be set, and what it means.

    Of each setting: type, default, the value that it would take with the choices that are named (now), unit, range,
    meaning, source, and what reads it. Without words: the groups and sections.
    """
    from rlhf_lab.cli.explain import explain

    console.print(explain(arguments), soft_wrap=False)


def dashboard_command(arguments: Sequence[str]) -> None:
    """`dashboard [FILE.json | --push entity/project]`: the W&B dashboard, written as JSON or saved in a project."""
    is_push = list(arguments[:1]) == ["--push"]
    if len(arguments) > 1 + is_push or (is_push and len(arguments) == 1):
        raise ConfigError("dashboard takes a file to write or --push entity/project: dashboard dashboard.json")
    from rlhf_lab.trackers import dashboard

    if is_push:
        console.print(f"dashboard: {dashboard.push(arguments[1])}", soft_wrap=True)
    else:
        path = Path(arguments[0] if arguments else "dashboard.json")
        console.print(f"dashboard: {dashboard.write(path)}")


def sweep_command(arguments: Sequence[str]) -> None:
    """`sweep +recipe=… [override …] [method=grid to=FILE.yaml …]`: a study or sweep as a file for W&B's sweep agents.

    `method` is grid, random or bayes, over the study's factors or the swept values; its metric is the study's first.
    `continuous=KEY,…` searches between the smallest and largest value of a key; `runs=N` ends the search after N runs.
    `wandb sweep FILE.yaml` registers it, and `wandb agent` runs its jobs, each a command of the lab. docs/tracking.md.
    """
    from rlhf_lab.cli.sweep_file import run

    run(arguments)
