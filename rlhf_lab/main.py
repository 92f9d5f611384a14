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
    python -m rlhf_lab leaderboard FILE …          rank who wrote the replies of judgements.jsonl
    python -m rlhf_lab judge A B judge=…           let a judge say whose replies are better; judge A grades them
    python -m rlhf_lab gate SUITE.yaml RUN         hold a run to a suite; status 1 where it falls short
    python -m rlhf_lab rescore FOLDER 'reward.weights={bt:.7,programmatic:.3}' …
    python -m rlhf_lab label RUN_OR_FILE           compare replies in the browser; export=FILE.jsonl writes the labels
    python -m rlhf_lab sandbox [probes=true]       how well programs of a model are isolated here; 91 attacks on it
    python -m rlhf_lab features FOLDER to=FILE.csv measure the acoustic features of WAV files
    python -m rlhf_lab export RUN to=FOLDER        write the attempts of agents as logs of inspect
    python -m rlhf_lab publish RUN to=FOLDER       the model with a card made from its run; to=hub:OWNER/NAME sends it
    python -m rlhf_lab parler setup                make the environment of Parler-TTS; parler dpo trains it
    python -m rlhf_lab vllm setup                  make the environment of vLLM; vllm serve starts a server
    python -m rlhf_lab dashboard dashboard.json    write the W&B dashboard
    python -m rlhf_lab sweep +recipe=study/buffers write a study as a sweep for W&B's agents
    python -m rlhf_lab explain algorithm=ppo       what can be set, and what each setting means
    python -m rlhf_lab NAME --help                 say what a sub-command takes
    python -m rlhf_lab --version                   version and commit

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
from rlhf_lab.cli import summary
from rlhf_lab.cli.table import COMMANDS, described, needs_words
from rlhf_lab.config import compose, inventory, words
from rlhf_lab.config.smoke import NOTICE
from rlhf_lab.core import invocation
from rlhf_lab.core.console import console, leave_closed_pipe
from rlhf_lab.core.errors import ConfigError, DataError, LabError
from rlhf_lab.core.files import check_outputs, storage_error
from rlhf_lab.core.imports import without_collector
from rlhf_lab.core.machine import PROCESSES
from rlhf_lab.core.scratch import remove_abandoned
from rlhf_lab.core.signals import handled
from rlhf_lab.stages import artifacts, preflight
from rlhf_lab.stages.manifest import git_sha
from rlhf_lab.stages.reuse import reusable
from rlhf_lab.sweeps import sweep
from rlhf_lab.sweeps.wandb_file import given_values
from rlhf_lab.trackers.settings import marked

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # idle threads that spin slow down every other process on the machine
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
NO_FILES = Path(__file__).resolve().parent / "config"
"""Where Hydra looks for files besides the store: a folder that has none. It would list those of packs as groups."""
LISTING = ("list", "help")
"""Words that list the recipes and sub-commands, as a command line without words does."""
OK, FAILED, WRONG_INPUT, PAUSED, INTERRUPTED = 0, 1, 2, 3, 130


def main() -> None:
    """Entry point of `python -m rlhf_lab` and `rlhf-lab`."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        # stays installed while Python shuts down: a second signal must not change the exit status
        signal.signal(number, _raise_interrupt)
    invocation.remember()
    with handled(_raise_interrupt):
        status = _run_to_status(sys.argv[1:])
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # A normal exit tears the process group down, which hangs when a peer is gone already.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _run_to_status(arguments: Sequence[str]) -> int:
    """Run a command line and turn every expected error into a message and an exit status."""
    try:
        status = _dispatch(arguments)
        # Flush here, so that a closed pipe is caught below and not reported while Python shuts down.
        sys.stdout.flush()
        return status
    except (ConfigError, DataError) as error:
        summary.print_problems(error, ran=invocation.building())
        return WRONG_INPUT
    except BrokenPipeError:
        if _stdout_has_reader():
            raise  # some other pipe broke, not stdout
        leave_closed_pipe()
    except LabError as error:
        console.print(f"[bold red]failed:[/] {escape(str(error))}", soft_wrap=True)
        return FAILED
    except OSError as error:
        explanation = storage_error(error) or _permission_advice(error)
        if explanation is None:
            raise
        console.print(f"[bold red]failed:[/] {escape(str(explanation))}", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        console.print("[yellow]interrupted:[/] the same command goes on from what is saved", soft_wrap=True)
        return INTERRUPTED


def _dispatch(arguments: Sequence[str]) -> int:
    """Run a listing, a sub-command or a recipe. Returns the exit status."""
    first = arguments[0] if arguments else "list"
    if "--version" in arguments:
        console.print(f"rlhf_lab {__version__}{_commit_suffix()}", soft_wrap=True)
    elif first in LISTING and not set(arguments[1:]) & set(COMMANDS):
        summary.list_recipes([described(name).splitlines()[0] for name in COMMANDS])
    elif first in LISTING:
        console.print(described(arguments[1]), markup=False, soft_wrap=True)
    elif first not in COMMANDS:
        return run_command(arguments)
    elif {"--help", "-h"} & set(arguments[1:]):
        console.print(described(first), markup=False, soft_wrap=True)
    elif len(arguments) == 1 and needs_words(first):
        console.print(described(first), markup=False, soft_wrap=True)
        return WRONG_INPUT
    else:
        return COMMANDS[first](arguments[1:]) or OK
    return OK


def _stdout_has_reader() -> bool:
    """Whether the other end of stdout is still open."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not any(event & select.POLLERR for _, event in poll.poll(0))


def _commit_suffix() -> str:
    """`(git SHA)` after a space in a checkout, empty for an installed package."""
    sha = git_sha()
    return f" (git {sha})" if sha else ""


def _permission_advice(error: OSError) -> str | None:
    """What to do about a file that this user may not open; None for any other error."""
    if not isinstance(error, PermissionError) or not error.filename:
        return None
    return f"{error.filename} cannot be opened: {error.strerror}; give this user permission, or name another file"


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Treat a termination signal like Ctrl-C: keep finished stages, write a sweep's table, resume the rest later."""
    del number, frame
    raise KeyboardInterrupt


def run_command(arguments: Sequence[str]) -> int:
    """Check a recipe's command line, then run its one job, or all jobs of its sweep."""
    started = time.time()
    _check_first_word(arguments[0])
    flags = words.split(arguments)
    if flags.shell_completion and any(word.startswith("query=") for word in flags.overrides):
        return _print_completions(flags.overrides[0].removeprefix("query="))
    if flags.help or flags.hydra_help or flags.info or flags.shell_completion:
        return _show_hydra_output(arguments)
    command = compose.check_command(flags.overrides, flags.config_dir)
    if flags.cfg == "job":
        summary.print_config(command)
        return OK
    if flags.cfg:
        config_dir = [f"--config-dir={flags.config_dir}"] if flags.config_dir else []
        return _show_hydra_output([f"--cfg={flags.cfg}", *config_dir, *command.overrides])
    if not command.recipe:
        raise ConfigError(f"no recipe named; write +recipe=NAME, one of: {', '.join(inventory.recipes())}")
    is_sweep = len(command.jobs) > 1 or command.study is not None or flags.multirun
    words.check_hydra(command.overrides, sweep=is_sweep)
    if is_sweep:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError(
                "a sweep starts its own jobs, and a launcher has started several processes; run it without, and let "
                "each job take its own with sharding.processes, or name one job"
            )
        return sweep.run(command, flags.config_dir, _run_hydra)
    return _run_single(command, command.recipe, started)


def _run_single(command: compose.Command, recipe: str, started: float) -> int:
    """Plan the one run of a command, look for what would fail, and run it."""
    checked = command.configs[0]
    checked = checked.replace(tracker=marked(checked.tracker, group=recipe))
    stage = artifacts.plan(checked, recipe)
    if swept := given_values():  # an agent of W&B started this command: its run is that of the last stage
        last_config = checked.replace(tracker=marked(checked.tracker, swept=swept))
        stage = dataclasses.replace(stage, config=last_config)
    outputs = Path(checked.outputs)
    # Twice: the store must be readable to see whether the result is there, and writable only if it is not.
    check_outputs(outputs, writes=False)
    check_outputs(outputs, writes=stage.result() is None)
    preflight.check([stage])
    if checked.size == "smoke":
        console.print(f"[yellow]{NOTICE}[/]", soft_wrap=True)
    names_critic = any("critic=" in override for override in command.overrides)
    if getattr(checked.algorithm, "critic", "") == "zero" and not names_critic:
        console.print(
            "  the reward reads no reward model, so the critic starts from the policy (algorithm.critic=zero)"
        )
    status, _ = run_stage(stage, started)
    return status


def _print_completions(shell: str) -> int:
    """Print completions of the command line in COMP_LINE, for the shell function that `-sc install` defined."""
    from rlhf_lab.cli.completion import candidates

    print(("\n" if shell == "fish" else " ").join(candidates(os.environ["COMP_LINE"], COMMANDS)))
    return OK


def _check_first_word(word: str) -> None:
    """Raises ConfigError for a misspelt sub-command."""
    if not word.isidentifier() or word in inventory.recipes():
        return
    close = get_close_matches(word, [*COMMANDS, *LISTING], n=1)
    if close:
        raise ConfigError(f"{word} is not a command; did you mean {close[0]}?")


def _show_hydra_output(arguments: Sequence[str]) -> int:
    """Let Hydra print its help or its own settings, after which it exits."""
    compose.register_store()
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises errors instead of printing them
    try:
        return _run_hydra(arguments)
    except (ValueError, HydraException) as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    except SystemExit as hydra_exit:  # return, so that the caller still flushes stdout and sees a closed pipe
        return int(hydra_exit.code or 0)


def _run_hydra(arguments: Sequence[str]) -> int:
    """Run Hydra's own main with these arguments: its help, or launching the jobs of a sweep."""
    sys.argv = [sys.argv[0], *arguments]
    hydra.main(version_base="1.3", config_path=str(NO_FILES), config_name="config")(job)()
    return OK


def job(composed: DictConfig) -> dict[str, Any]:
    """One job of a sweep, in whatever process the launcher chose. A failure becomes a record, not a lost sweep."""
    values: Any = OmegaConf.to_container(composed, resolve=True)
    return sweep.run_job(values, run_stage)


def run_stage(stage: artifacts.Stage, started: float | None = None) -> tuple[int, dict[str, Any]]:
    """Announce the plan, build what is missing, show the result. Returns (exit status, result).

    Args:
        started: when the command began (Unix seconds); None is now.
    """
    started = started or time.time()
    # Under a launcher the ranks must agree on what is stored, which takes a process group: see `_build_and_show`.
    single_process = int(os.environ.get("WORLD_SIZE", "1")) == 1
    stored = reusable(stage, started) if single_process else None
    if stored:
        summary.print_plan(stage, started)
        summary.print_result(stage, stored, time.time() - started)
        return OK, stored
    return _build_and_show(stage, started)


def _build_and_show(stage: artifacts.Stage, started: float) -> tuple[int, dict[str, Any]]:
    # Imported here because they import torch, which a stored result and every wrong command do without.
    with without_collector():
        from rlhf_lab.core import ranks
        from rlhf_lab.memory.check import memory_lines
        from rlhf_lab.stages import side_by_side
        from rlhf_lab.stages.execute import ensure
        from rlhf_lab.stages.launch.processes import check_launch
        from rlhf_lab.stages.launch.threads import set_threads
        from rlhf_lab.training.loop import Interrupted, Paused

    check_launch(stage.config)
    remove_abandoned()
    local_processes = int(os.environ.get(PROCESSES, os.environ.get("LOCAL_WORLD_SIZE", "1")))
    set_threads(stage.config, local_processes)
    try:
        with ranks.group(ranks.device(stage.config.runtime.device)):
            console.quiet = not ranks.is_main()
            summary.print_plan(stage, started)
            summary.print_memory(memory_lines(stage))
            side_by_side.build(stage, started)
            result = ensure(stage, started)
    except Paused as stop:
        console.print(f"[yellow]paused:[/] {escape(str(stop))}", soft_wrap=True)
        return PAUSED, {"status": "paused", "error": str(stop)}
    except Interrupted as stop:
        console.print(f"[yellow]interrupted:[/] {stop}; the same command goes on from here")
        return INTERRUPTED, {"status": "interrupted", "error": str(stop)}
    if not console.quiet:
        summary.print_result(stage, result, time.time() - started)
    return OK, result
