"""Worker process that trains a stage together with others: `python -m rlhf_lab.stages.worker ORDER PARENT`.

ORDER is the file that `processes.train_together` wrote, PARENT its process id. Errors are reported in a file next to
ORDER.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from rlhf_lab.config import check
from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ArtifactError, DeviceMemoryError, LabError
from rlhf_lab.core.files import read_json
from rlhf_lab.core.machine import PROCESSES
from rlhf_lab.core.signals import die_with_parent
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import execute, stoppable
from rlhf_lab.stages.launch.processes import STOPPED, set_threads
from rlhf_lab.training.loop import Interrupted


def main() -> int:
    """Run the worker and return its exit status: 0 done, 1 failed, STOPPED stopped and saved."""
    order_file, parent = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call above took effect
        return 1
    order = read_json(order_file)
    stage = artifacts.plan(check.check(order["values"]), order["recipe"])
    processes = int(os.environ["LOCAL_WORLD_SIZE"]) * int(os.environ.get(PROCESSES, "1"))
    set_threads(stage.config, processes)
    console.quiet = int(os.environ["RANK"]) != 0
    try:
        # Each worker plans again. A different directory means a different key: the ranks would build different stages.
        if str(stage.directory) != order["folder"]:
            raise ArtifactError(
                "code or data changed while the processes of a stage started; run the same command again"
            )
        device = ranks.device(stage.config.runtime.device)
        minutes = stage.config.sharding.timeout_minutes
        with stoppable(), ranks.group(device, minutes):
            execute(stage, discard=order["discard"], micro_batch_tokens=order["micro_batch_tokens"])
    except Interrupted:
        return STOPPED
    except Exception as error:
        expected = isinstance(error, LabError)
        report = {
            "error": str(error) if expected else f"{type(error).__name__}: {error}",
            "traceback": "" if expected else traceback.format_exc(),
            "micro_batch_tokens": error.micro_batch_tokens if isinstance(error, DeviceMemoryError) else None,
            "failed_at": time.monotonic(),  # all processes of a machine share this clock
        }
        report_file = order_file.parent / f"error_{os.environ['RANK']}.json"
        report_file.write_text(json.dumps(report))
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a normal exit closes the process group, which hangs if a peer is gone
