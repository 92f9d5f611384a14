"""`make bench`: one table of speed ratios, measured side by side in this run. Takes a few minutes.

python tests/bench/run.py [--device cpu|cuda] [--threads 1] [--rounds 5] [--json FILE]
    [--only sampler|training|policy|episodes]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

sys.path += map(str, sorted(Path(__file__).parent.glob("[a-z]*/")))  # what the packs measure
BENCHES = {"sampler": "sampling", "training": "training", "policy": "policy", "episodes": "episodes"}
"""Name on the command line → its module, without those of packs that are not there."""
BENCHES = {name: module for name, module in BENCHES.items() if find_spec(module)}

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_DATASETS_DISABLE_PROGRESS_BARS="1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="timed turns of every contestant, at least 5")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--only", choices=BENCHES)
    options = parser.parse_args()

    import shapes
    import torch
    import transformers
    from rich.console import Console
    from rich.table import Table

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    shapes.use(options.device)
    rounds = max(5, options.rounds)
    chosen = [module for name, module in BENCHES.items() if options.only in (None, name)]
    rows = [row for module in chosen for row in import_module(module).rows(rounds)]

    machine = f"{cpu_name()}, {os.cpu_count()} cores, {options.threads} thread(s), torch {torch.__version__}"
    if options.device == "cuda":
        machine = f"{torch.cuda.get_device_name()}, {machine}"
    clock = "CPU time" if options.threads == 1 and not torch.cuda.is_available() else "wall time"
    title = f"Ratio of {clock}, theirs / ours: median of {rounds} rounds in turns\n{machine}"
    table = Table(title=title, title_justify="left")
    for name, justify in (("work", "left"), ("against", "left"), ("ours s", "right"), ("theirs s", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("bar", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("")
    colour = {"pass": "green", "short": "red"}
    for row in rows:
        numbers = [
            "" if x is None else f"{x:.{digits}f}{unit}"
            for x, digits, unit in ((row.ours_s, 3, ""), (row.theirs_s, 3, ""), (row.bar, 1, "×"), (row.ratio, 2, "×"))
        ]
        table.add_row(row.work, row.against, *numbers, row.verdict, style=colour.get(row.verdict))
    Console(width=None if Console().is_terminal else 150).print(table)
    if options.json:
        record = {"machine": machine, "clock": clock, "rounds": rounds, "rows": [row.as_dict() for row in rows]}
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
