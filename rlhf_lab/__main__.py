"""`python -m rlhf_lab` and `rlhf-lab`; see `rlhf_lab/main.py`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command line. `--help` by itself is answered without the imports of every other command."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        _print_help()
    else:
        from rlhf_lab.core.imports import without_collector

        with without_collector():
            from rlhf_lab.main import main as run

        run()


def _print_help() -> None:
    from rlhf_lab.config.inventory import overview

    try:
        print(overview())
        sys.stdout.flush()  # here, so that a closed pipe is caught and not reported while Python shuts down
    except BrokenPipeError:
        from rlhf_lab.core.console import leave_closed_pipe

        leave_closed_pipe()


if __name__ == "__main__":
    main()
