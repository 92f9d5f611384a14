"""Estimated against measured memory: one table with the error of each row in per cent.

python tests/bench/memory.py [--device cpu|cuda] [--json FILE] [--page FILE]

On the CPU small models are measured by their live tensor storages, updates of two processes in every strategy
included; on a GPU the shapes of GPT-2 124M and 355M with random weights by the peak of the CUDA allocator.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "numeric"))

import torch
from memory_cases import Found, divergence, ppo_update, sample, score, update
from memory_divided import SETTINGS, measure_all
from memory_divided import cases as divided_cases
from processes import together
from rich.console import Console
from rich.table import Table

from rlhf_lab.memory.show import size
from rlhf_lab.memory.sizes import PUBLISHED, ModelShape
from rlhf_lab.memory.state import Training
from rlhf_lab.memory.work import Rows

SMALL = (
    ModelShape("llama", 128, 4, 8, 2, 16, 352, 1000, name="Llama 0.8M"),
    ModelShape("gpt2", 128, 4, 8, 8, 16, 512, 1000, 512, name="GPT-2 1.0M"),
)
LARGE = (PUBLISHED["gpt2"], PUBLISHED["gpt2-medium"])
Case = tuple[str, Callable[[], Found]]


def cases(device: str, shape: ModelShape) -> list[Case]:
    """Name and work, from small to large."""
    length, count = (256, 8) if device == "cuda" else (32, 16)
    rows, shared = Rows(count, length, length), Rows(count, length, length, prompts=count // 2)
    found: list[Case] = []

    def add(name: str, work: Callable[[], Found]) -> None:
        found.append((f"{shape.name}: {name}", work))

    for precision in ("float32", "bfloat16"):
        simple: Any = Training(precision)  # type: ignore[arg-type]
        for name, training in (
            ("SFT", simple),
            ("SFT, checkpointing", replace(simple, checkpointing=True)),
            ("SFT, adapter of rank 16", replace(simple, rank=16)),
            ("SFT, Muon", replace(simple, optimizer="muon")),
        ):
            add(f"{name}, {precision}", lambda t=training: update("sft", shape, rows, t, device=device))  # type: ignore[misc]
        add(f"DPO, {precision}", lambda t=simple: update("dpo", shape, shared, t, device=device))  # type: ignore[misc]
        add(f"PPO, {precision}", lambda t=simple: ppo_update(shape, rows, t, device))  # type: ignore[misc]
    add("sampling", lambda: sample(shape, 16, 8, length, length, device))
    add("log-probabilities", lambda: score(shape, rows, device))
    add("KL of two policies", lambda: divergence(shape, rows, device))
    return found


def in_two_processes(shape: ModelShape) -> list[dict[str, Any]]:
    """Updates under every strategy whose library is here."""
    strategies = [name for name in SETTINGS if not name.startswith("zero") or find_spec("deepspeed")]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "found.json"
        plan = [(strategy, work) for strategy in strategies for work in divided_cases()]
        together(measure_all, out, plan, shape, Rows(16, 32, 32))
        found = json.loads(out.read_text())
    return [{**row, "work": f"{shape.name}: {row.pop('strategy')}, {row['work']}"} for row in found]


def page(rows: list[dict[str, Any]], where: str) -> str:
    """The table as Markdown, with its command."""
    device = "cpu" if where == "CPU" else "cuda"
    head = f"""# Memory: estimated and measured, {where}

`python tests/bench/memory.py --device {device} --page FILE`, torch {torch.__version__.partition("+")[0]}. Random
weights; the third step of an update, with all tensors of a process. A strategy's name stands before the work of one of
two processes. How estimates are made: [docs/memory.md](../memory.md).

| work | estimated | measured | error |
| --- | --: | --: | --: |
"""
    lines = (f"| {r['work']} | {size(r['estimated'])} | {size(r['measured'])} | {r['error']:+.1%} |" for r in rows)
    return head + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--page", type=Path, help="also write them to this Markdown file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    table = Table(title=f"Peak memory, {where}, torch {torch.__version__}", title_justify="left")
    table.add_column("work")
    for name in ("estimated", "measured", "error"):
        table.add_column(name, justify="right")
    rows: list[dict[str, Any]] = []
    for shape in LARGE if options.device == "cuda" else SMALL:
        for name, work in cases(options.device, shape):
            found = work()
            gc.collect()
            rows.append({"work": name, "estimated": found.estimated, "measured": found.measured})
        if options.device == "cpu":
            rows += in_two_processes(shape)
    for row in rows:
        row["error"] = row["estimated"] / row["measured"] - 1
        table.add_row(row["work"], size(row["estimated"]), size(row["measured"]), f"{row['error']:+.1%}")
    worst = max(rows, key=lambda row: abs(row["error"]))
    table.caption = f"largest error {worst['error']:+.1%}, {worst['work']}"
    table.caption_justify = "left"
    Console(width=None if Console().is_terminal else 120).print(table)
    if options.page:
        options.page.write_text(page(rows, where))
    if options.json:
        options.json.write_text(json.dumps({"device": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
