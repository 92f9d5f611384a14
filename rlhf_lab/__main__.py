"""`python -m rlhf_lab` and `rlhf-lab`; see `rlhf_lab/main.py`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rlhf_lab.core.errors import ConfigError


def main() -> None:
    """Run a command line. Ctrl-C during the imports, which take a second, is no error."""
    try:
        _run()
    except KeyboardInterrupt:
        print("interrupted: nothing was run")
        sys.exit(130)  # as in `rlhf_lab/main.py`, which handles every later interruption


def _run() -> None:
    """Run a command line. `--help` alone is answered without importing the modules of other commands."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        _print_help()
    else:
        from rlhf_lab.core.errors import ConfigError
        from rlhf_lab.core.imports import without_collector

        try:
            with without_collector():
                from rlhf_lab.main import main as run
        except ConfigError as error:  # the sub-commands of a plug-in failed to load
            _exit_with_problems(error)
        run()


def _print_help() -> None:
    """Print the overview of commands and settings."""
    from rlhf_lab.config.inventory import overview
    from rlhf_lab.core.errors import ConfigError

    try:
        print(overview())
        sys.stdout.flush()  # flush here, so that a closed pipe is caught and not reported while Python shuts down
    except BrokenPipeError:
        from rlhf_lab.core.console import leave_closed_pipe

        leave_closed_pipe()
    except ConfigError as error:  # a plug-in failed to load
        _exit_with_problems(error)


def _exit_with_problems(error: ConfigError) -> NoReturn:
    """Print the problems of a command and exit with status 2."""
    from rlhf_lab.cli.summary import print_problems

    print_problems(error)
    sys.exit(2)


if __name__ == "__main__":
    main()
