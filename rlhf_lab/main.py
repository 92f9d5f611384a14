"""The command line: compose → check → plan → run → result.

    python -m rlhf_lab                             list the recipes
    python -m rlhf_lab +recipe=dpo_iterative       run one; add overrides such as model=small algorithm.beta=0.1
    python -m rlhf_lab +recipe=study/buffers       run a study: a sweep that ends in one table and one plot
    python -m rlhf_lab report FOLDER               write the report of a run or study, finished or not
    python -m rlhf_lab monitor FOLDER              judge a run's samples for reward hacking; add settings such as z=3
    python -m rlhf_lab plan +recipe=dpo model=gpt2 what each stage needs of memory; plan table for 117M to 70B
    python -m rlhf_lab audit data=hh_rlhf data.path=FILE
    python -m rlhf_lab doctor [+recipe=… model=… …]  check the installation, and training on a model
    python -m rlhf_lab compare A B                 test the difference of two runs, jobs or studies
    python -m rlhf_lab rescore FOLDER 'reward.weights={bt:.7,programmatic:.3}' …
    python -m rlhf_lab dashboard dashboard.json    write the W&B dashboard
    python -m rlhf_lab NAME --help                 say what a sub-command takes

Everything is checked before torch is imported. Exit status: 0 done, 1 failed, 2 the command or its input is wrong,
130 interrupted and saved.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig, OmegaConf
from rich.markup import escape

from rlhf_lab import artifacts, compose, preflight, summary, sweep
from rlhf_lab.commands import COMMANDS, described
from rlhf_lab.errors import ConfigError, DataError, LabError
from rlhf_lab.files import storage_error
from rlhf_lab.signals import handled
from rlhf_lab.smoke import NOTICE
from rlhf_lab.trackers.console import console
from rlhf_lab.trackers.settings import marked

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # idle threads that spin slow down every other process on the machine
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
OK, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def main() -> None:
    """Entry point of `python -m rlhf_lab` and `rlhf-lab`."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _interrupt)  # also while Python ends: a second one must not change the status
    with handled(_interrupt):
        status = _status(sys.argv[1:])
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # a peer that is gone would keep Python from ending
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _status(arguments: Sequence[str]) -> int:
    """Do what a command line says; returns the exit status."""
    try:
        return _done(arguments)
    except (ConfigError, DataError) as error:
        summary.print_problems(error)
        return WRONG_INPUT
    except LabError as error:
        console.print(f"[bold red]failed:[/] {escape(str(error))}", soft_wrap=True)
        return FAILED
    except OSError as error:
        refused = storage_error(error) or _forbidden(error)
        if refused is None:
            raise
        console.print(f"[bold red]failed:[/] {escape(str(refused))}", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        console.print("[yellow]interrupted:[/] the same command goes on from what is saved", soft_wrap=True)
        return INTERRUPTED


def _done(arguments: Sequence[str]) -> int:
    """Status of a command that ends without an error: a list, a sub-command, or a recipe."""
    if arguments and arguments[0] not in COMMANDS:
        return run_command(arguments)
    if not arguments:
        summary.list_recipes([described(name).splitlines()[0] for name in COMMANDS])
    elif {"--help", "-h"} & set(arguments[1:]):
        console.print(described(arguments[0]), markup=False, soft_wrap=True)
    else:
        COMMANDS[arguments[0]](arguments[1:])
    return OK


def _forbidden(error: OSError) -> str | None:
    """What to do about a file that this user may not open; None for another error."""
    if not isinstance(error, PermissionError) or not error.filename:
        return None
    return f"{error.filename} cannot be opened: {error.strerror}; give this user permission, or name another file"


def _interrupt(number: int, frame: Any) -> None:
    """End as Ctrl-C does: what is complete stays, a sweep's table is written, the rest goes on later."""
    del number, frame
    raise KeyboardInterrupt


def run_command(arguments: Sequence[str]) -> int:
    """Check a command line, then run its job, or all jobs of its sweep."""
    flags = get_args_parser().parse_args(list(arguments))
    if flags.help or flags.hydra_help or flags.cfg or flags.info or flags.shell_completion:
        compose.register_store()
        return _hydra(arguments)
    command = compose.check_command(flags.overrides, flags.config_dir)
    if not command.recipe:
        raise ConfigError(f"no recipe named; write +recipe=NAME, one of: {', '.join(compose.recipes())}")
    if len(command.jobs) > 1 or command.study or flags.multirun:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError(
                "a sweep starts its own jobs, and a launcher has started several processes; run it without, and let "
                "each job take its own with sharding.processes, or name one job"
            )
        return sweep.run(command, flags.config_dir, _hydra)
    checked = command.configs[0]
    checked = dataclasses.replace(checked, tracker=marked(checked.tracker, group=command.recipe))
    stage = artifacts.plan(checked, command.recipe)
    preflight.check([stage])
    if checked.size == "smoke":
        console.print(f"[yellow]{NOTICE}[/]", soft_wrap=True)
    if getattr(checked.algorithm, "critic", "") == "zero" and not any("critic=" in o for o in command.overrides):
        console.print(
            "  the reward reads no reward model, so the critic starts from the policy (algorithm.critic=zero)"
        )
    status, _ = run_stage(stage)
    return status


def _hydra(arguments: Sequence[str]) -> int:
    """Hand arguments to Hydra: help, --cfg, and launching the jobs of a sweep."""
    sys.argv = [sys.argv[0], *arguments]
    hydra.main(version_base="1.3", config_path=None, config_name="config")(job)()
    return OK


def job(composed: DictConfig) -> dict[str, Any]:
    """One job of a sweep, in whatever process the launcher chose. A failure becomes a record, not a lost sweep."""
    values: Any = OmegaConf.to_container(composed, resolve=True)
    return sweep.run_job(values, run_stage)


def run_stage(stage: artifacts.Stage) -> tuple[int, dict[str, Any]]:
    """Announce the plan, build what is missing, show the result. Returns (exit status, result)."""
    from rlhf_lab import ranks
    from rlhf_lab.execute import ensure
    from rlhf_lab.launch.processes import check_launch
    from rlhf_lab.launch.threads import set_threads
    from rlhf_lab.planning.check import memory_lines
    from rlhf_lab.train.loop import Interrupted

    started = time.time()
    check_launch(stage.config)
    set_threads(stage.config, int(os.environ.get(sweep.PROCESSES, os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    try:
        with ranks.group(ranks.device(stage.config.runtime.device)):
            console.quiet = not ranks.is_main()
            summary.print_plan(stage, started)
            summary.print_memory(memory_lines(stage))
            result = ensure(stage, started)
    except Interrupted as stop:
        console.print(f"[yellow]interrupted:[/] {stop}; the same command goes on from here")
        return INTERRUPTED, {"status": "interrupted", "error": str(stop)}
    if not console.quiet:
        summary.print_result(stage, result, time.time() - started)
    return OK, result
