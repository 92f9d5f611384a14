"""Command line: compose → check → plan → run → result.

    python -m rlhf_lab                             list the recipes and the sub-commands
    python -m rlhf_lab +recipe=dpo_iterative       run a recipe; add overrides such as model=small algorithm.beta=0.1
    python -m rlhf_lab +recipe=study/buffers       run a study: a sweep that ends in one table and one plot
    python -m rlhf_lab NAME --help                 show the arguments of a sub-command

-q prints errors and results only, -v prints more detail. A run directory has all of it in log.txt.
Everything is checked before torch is imported. Exit status: 0 done, 1 failed, 2 the command or its input is wrong,
3 paused by the monitor and saved, 130 interrupted and saved.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from rich.markup import escape

from rlhf_lab import __version__
from rlhf_lab.cli import recipe_list, summary
from rlhf_lab.cli.recipe_command import RecipeCommands
from rlhf_lab.cli.table import COMMANDS, LISTING, description_of, needs_words
from rlhf_lab.cli.verbosity import take_flags
from rlhf_lab.config import command_line, compose, inventory, typed_overrides, words
from rlhf_lab.config.smoke import NOTICE
from rlhf_lab.core import invocation
from rlhf_lab.core.console import console, leave_closed_pipe
from rlhf_lab.core.errors import ConfigError, DataError, LabError
from rlhf_lab.core.files import check_outputs, storage_error
from rlhf_lab.core.imports import without_collector
from rlhf_lab.core.machine import PROCESSES
from rlhf_lab.core.scratch import remove_abandoned
from rlhf_lab.core.signals import handled
from rlhf_lab.core.text import is_well_formed
from rlhf_lab.stages import artifacts, preflight
from rlhf_lab.stages.launch import accelerate
from rlhf_lab.stages.manifest import git_sha
from rlhf_lab.stages.reuse import reusable, track_reused
from rlhf_lab.sweeps import sweep
from rlhf_lab.sweeps.wandb_file import provided_values
from rlhf_lab.trackers.settings import marked

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # idle threads that spin slow down every other process on the machine
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
NO_FILES = Path(__file__).resolve().parent / "config"
"""Directory without config files, in which Hydra looks for them in addition to the store. If it contained the packs,
Hydra would list their files as config groups."""
OK, FAILED, WRONG_INPUT, PAUSED, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit statuses."""


def main() -> None:
    """Entry point of `python -m rlhf_lab` and `rlhf-lab`."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        # The handler stays installed while Python shuts down: a second signal must not change the exit status.
        signal.signal(number, _raise_interrupt)
    invocation.remember()
    with handled(_raise_interrupt):
        status = _run_to_status(sys.argv[1:])
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # A normal exit destroys the process group, which hangs if a peer process has already exited.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _run_to_status(arguments: Sequence[str]) -> int:
    """Run a command line and turn every expected error into a message and an exit status."""
    try:
        _require_text(arguments)
        status = _dispatch(take_flags(arguments))
        # Flush here, so that a closed pipe is caught below and not reported while Python shuts down.
        sys.stdout.flush()
        return status
    except (ConfigError, DataError) as error:
        summary.print_problems(error, ran=invocation.building())
        return WRONG_INPUT
    except BrokenPipeError:
        if _stdout_has_reader():
            raise  # another pipe broke, not stdout
        leave_closed_pipe()
    except LabError as error:
        console.print(f"[bold red]failed:[/] {escape(str(error))}", markup=True)
        console.detail(traceback.format_exc())
        return FAILED
    except OSError as error:
        explanation = storage_error(error) or _permission_hint(error)
        if explanation is None:
            raise
        console.print(f"[bold red]failed:[/] {escape(str(explanation))}", markup=True)
        return FAILED
    except KeyboardInterrupt:
        console.print("[yellow]interrupted:[/] the same command resumes from what is saved", markup=True)
        return INTERRUPTED


def _dispatch(arguments: Sequence[str]) -> int:
    """Run a listing, a sub-command or a recipe. Return the exit status."""
    first = arguments[0] if arguments else "list"
    if "--version" in arguments:
        console.print(f"rlhf_lab {__version__}{_commit_suffix()}")
    elif first in LISTING and not set(arguments[1:]) & set(COMMANDS):
        recipe_list.print_recipes([description_of(name).splitlines()[0] for name in COMMANDS])
    elif first in LISTING:
        console.print(description_of(arguments[1]))
    elif first not in COMMANDS:
        return run_command(arguments)
    elif {"--help", "-h"} & set(arguments[1:]):
        console.print(description_of(first))
    elif len(arguments) == 1 and needs_words(first):
        console.print(description_of(first))
        return WRONG_INPUT
    else:
        outcome = COMMANDS[first](arguments[1:]) or OK
        if isinstance(outcome, int):
            return outcome
        if isinstance(outcome, RecipeCommands):
            return _run_commands(outcome)
        status = run_command(outcome.words)
        if status == OK and outcome.closing:
            console.inform(outcome.closing)
        return status
    return OK


def _run_commands(outcome: RecipeCommands) -> int:
    """Run the commands of several recipes one after another. Return the first exit status that is not 0, else 0."""
    statuses = []
    try:
        for index, command in enumerate(outcome.commands, start=1):
            console.inform(f"{index} of {len(outcome.commands)}: {' '.join(command.words)}")
            statuses.append(run_command(command.words))
    finally:
        outcome.finish()
    return next((status for status in statuses if status != OK), OK)


def _require_text(arguments: Sequence[str]) -> None:
    """Raise ConfigError for a word that is not UTF-8, because words are used in files and names, which are UTF-8."""
    for number, argument in enumerate(arguments, start=1):
        if not is_well_formed(argument):
            raise ConfigError(f"word {number} of the command, {argument!a}, is not UTF-8; write it in UTF-8")


def _stdout_has_reader() -> bool:
    """Return True if the other end of stdout is still open."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not any(event & select.POLLERR for _, event in poll.poll(0))


def _commit_suffix() -> str:
    """Return " (git SHA)" in a checkout; empty for an installed package."""
    sha = git_sha()
    return f" (git {sha})" if sha else ""


def _permission_hint(error: OSError) -> str | None:
    """Return what to do about a file that this user may not open; None for any other error."""
    if not isinstance(error, PermissionError) or not error.filename:
        return None
    return f"{error.filename} cannot be opened: {error.strerror}; give this user permission, or name another file"


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Treat a termination signal like Ctrl-C: finished stages stay, a sweep writes its table, the rest can resume."""
    del number, frame
    raise KeyboardInterrupt


def run_command(arguments: Sequence[str]) -> int:
    """Check a recipe's command line, then run its single job, or all jobs of its sweep. Return the exit status."""
    started = time.time()
    _check_first_word(arguments[0])
    flags = words.split(arguments)
    # Hydra's own queries (completion, help, info) are answered before any check of the settings.
    if flags.shell_completion and any(word.startswith("query=") for word in flags.overrides):
        return _print_completions(flags.overrides[0].removeprefix("query="))
    if flags.help or flags.hydra_help or flags.info or flags.shell_completion:
        return _show_hydra_output(arguments)
    problems: list[str] = []
    launched_with = accelerate.overrides(
        os.environ, flags.overrides, lambda words: _sharding_kind(words, flags.config_dir)
    )
    added_overrides = [setting.override for setting in launched_with]
    invocation.add_arguments(added_overrides)
    command = command_line.read_command([*flags.overrides, *added_overrides], flags.config_dir, problems)
    if problems or command is None:
        if command is not None and not flags.cfg:
            problems += preflight.further_problems(command)
        raise ConfigError(list(dict.fromkeys(problems)))  # without duplicates
    if flags.cfg == "job":
        summary.print_config(command)
        return OK
    if flags.cfg:
        config_dir = [f"--config-dir={flags.config_dir}"] if flags.config_dir else []
        return _show_hydra_output([f"--cfg={flags.cfg}", *config_dir, *command.overrides])
    named_keys = {typed_overrides.key_of(word) for word in command.overrides} | set(command.jobs[0])
    if "recipe" not in named_keys:
        raise ConfigError(f"the command names no recipe; add +recipe=NAME, one of: {', '.join(inventory.recipes())}")
    is_sweep = len(command.jobs) > 1 or command.study is not None or flags.multirun
    words.check_hydra(command.overrides, sweep=is_sweep)
    if is_sweep:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError(
                "a sweep starts its own jobs, but a launcher has already started several processes; run the command "
                "without the launcher and set sharding.processes for each job, or name a single job"
            )
        if command.study is not None and command.study.search:
            from rlhf_lab.sweeps import search  # imports pandas, which checking a command does not need

            return search.run(command, flags.config_dir, run_stage)
        return sweep.run(command, flags.config_dir, _run_hydra)
    return _run_single(command, started, accelerate.note(launched_with))


def _sharding_kind(overrides: Sequence[str], config_dir: str | None) -> str:
    """Return the kind of `sharding` that the overrides choose.

    Empty if they contain a mistake, which `read_command` reports.
    """
    try:
        kind: str = compose.compose(overrides, config_dir)["sharding"]["kind"]
    except ConfigError:
        return ""
    return kind


def _run_single(command: command_line.Command, started: float, launch_note: str) -> int:
    """Plan the single run of a command, check for predictable failures, and run it. Return the exit status.

    Args:
        launch_note: line about the settings that accelerate added to the command; empty without any.
    """
    checked = command.configs[0]
    checked = checked.replace(tracker=marked(checked.tracker, group=command.names[0]))
    stage = preflight.planned(dataclasses.replace(command, configs=[checked]))[0]
    if swept := provided_values():  # a W&B agent started this command, so its run must be that of the last stage
        last_config = checked.replace(tracker=marked(checked.tracker, swept=swept))
        stage = dataclasses.replace(stage, config=last_config)
    outputs = Path(checked.outputs)
    # Two checks: the store must be readable to see whether the result exists, and writable only if it does not.
    check_outputs(outputs, writes=False)
    check_outputs(outputs, writes=stage.result() is None)
    preflight.check([stage])
    if launch_note and os.environ.get("RANK", "0") == "0":
        console.inform(f"  {launch_note}")
    if checked.size == "smoke":
        console.inform(f"[yellow]{NOTICE}[/]", markup=True)
    names_critic = any("critic=" in override for override in command.overrides)
    if getattr(checked.algorithm, "critic", "") == "zero" and not names_critic:
        console.inform(
            "  the reward uses no reward model, so the critic starts from the policy (algorithm.critic=zero)"
        )
    status, result = run_stage(stage, started)
    if status == OK and (failure := result.get("failure")):
        console.print(f"[bold red]failed:[/] {escape(failure)}", markup=True)
        return FAILED
    return status


def _print_completions(shell: str) -> int:
    """Print completions of the command line in COMP_LINE, for the shell function that `-sc install` defines."""
    from rlhf_lab.cli.completion import candidates

    separator = "\n" if shell == "fish" else " "
    print(separator.join(candidates(os.environ["COMP_LINE"], COMMANDS)))
    return OK


def _check_first_word(word: str) -> None:
    """Raise ConfigError for a misspelt sub-command."""
    if not word.isidentifier() or word in inventory.recipes():
        return
    close = get_close_matches(word, [*COMMANDS, *LISTING], n=1)
    if close:
        raise ConfigError(f"{word} is not a command; did you mean {close[0]}?")


def _show_hydra_output(arguments: Sequence[str]) -> int:
    """Let Hydra print its help or its own settings, and return the status with which it exits."""
    compose.register_store()
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises errors instead of printing them
    try:
        return _run_hydra(arguments)
    except (ValueError, HydraException) as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    except SystemExit as hydra_exit:  # return, so that the caller still flushes stdout and sees a closed pipe
        return int(hydra_exit.code or 0)


def _run_hydra(arguments: Sequence[str]) -> int:
    """Run Hydra's own main function with these arguments, to print help or to launch the jobs of a sweep."""
    # Hydra reads its arguments from sys.argv.
    sys.argv = [sys.argv[0], *arguments]
    hydra.main(version_base="1.3", config_path=str(NO_FILES), config_name="config")(job)()
    return OK


def job(composed: DictConfig) -> dict[str, Any]:
    """Run one job of a sweep, in the process that the launcher chose. A failure is recorded, not raised."""
    values: Any = OmegaConf.to_container(composed, resolve=True)
    return sweep.run_job(values, run_stage)


def run_stage(stage: artifacts.Stage, started: float | None = None) -> tuple[int, dict[str, Any]]:
    """Print the plan, build missing stages, show the result. Return (exit status, result).

    Args:
        stage: the last stage of the job.
        started: start time of the command (Unix seconds); None means now.
    """
    started = started or time.time()
    # Under a launcher all ranks must agree on what is stored, which needs a process group: see `_build_and_show`.
    single_process = int(os.environ.get("WORLD_SIZE", "1")) == 1
    stored = reusable(stage, started) if single_process else None
    if stored:
        summary.print_plan(stage, started)
        for needed in stage.upstream():
            if needed.result():
                track_reused(needed)
        summary.print_result(stage, stored, time.time() - started)
        return OK, stored
    return _build_and_show(stage, started)


def _build_and_show(stage: artifacts.Stage, started: float) -> tuple[int, dict[str, Any]]:
    """Build missing stages in a process group and show the result; see `run_stage`."""
    # Imported here because they import torch, which is not needed for a stored result or a wrong command.
    with without_collector():
        from rlhf_lab.core import ranks
        from rlhf_lab.memory.neutral import memory_lines
        from rlhf_lab.stages import side_by_side
        from rlhf_lab.stages.execute import ensure
        from rlhf_lab.stages.launch.processes import check_launch, set_threads
        from rlhf_lab.training.loop import Interrupted, Paused

    check_launch(stage.config)
    # Temporary directories of killed processes would otherwise accumulate.
    remove_abandoned()
    local_processes = int(os.environ.get(PROCESSES, os.environ.get("LOCAL_WORLD_SIZE", "1")))
    set_threads(stage.config, local_processes)
    with console.logged(stage.directory):
        try:
            with ranks.group(ranks.device(stage.config.runtime.device), stage.config.sharding.timeout_minutes):
                console.quiet = not ranks.is_main()  # only rank 0 prints
                summary.print_plan(stage, started)
                summary.print_memory(memory_lines(stage))
                side_by_side.build(stage, started)
                result = ensure(stage, started)
        except Paused as stop:
            console.print(f"[yellow]paused:[/] {escape(str(stop))}", markup=True)
            return PAUSED, {"status": "paused", "error": str(stop)}
        except Interrupted as stop:
            console.print(
                f"[yellow]interrupted:[/] {escape(str(stop))}; the same command resumes from here", markup=True
            )
            return INTERRUPTED, {"status": "interrupted", "error": str(stop)}
        if not console.quiet:
            summary.print_result(stage, result, time.time() - started)
    return OK, result
