"""The kit's results as Markdown: a page per block beside its JSON lines, and docs/results/gpu.md over all of them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import kit

FOLDER = kit.ROOT / "docs" / "results" / "gpu"
INDEX = kit.ROOT / "docs" / "results" / "gpu.md"
NOT_RUN = "written, not run"
FEATURES = {
    "training, sampling, log-probabilities: float32, bfloat16": ("numeric", ("logps-", "gradient-", "samples-")),
    "packed and two-pass forward passes": ("numeric", ("pass-",)),
    "PyTorch's attention kernels": ("numeric", ("attention-math", "attention-flash-", "attention-efficient")),
    "flash_attention_2": ("numeric", ("attention-flash_attention_2",)),
    "four bits (`model.weights=nf4`)": ("numeric", ("nf4-",)),
    "8-bit AdamW": ("numeric", ("adamw-8bit",)),
    "`doctor` on a GPU": ("numeric", ("doctor",)),
    "memory plans for a GPU (`plan`, `runtime.fit`)": ("memory", ("",)),
    "adapters on bfloat16 and four-bit bases at 8B": ("memory", ("sft-lora-",)),
    "training speed at 0.6B and 4B": ("speed", ("sft-", "trainer-", "lora-")),
    "the sampler beside `generate`": ("speed", ("sampler-", "generate-")),
    "a whole GRPO step": ("speed", ("grpo-step",)),
    "vLLM on a GPU (`rollout=vllm`)": ("speed", ("vllm-",)),
    "recipes, studies, speech and agents on a GPU": ("recipes", ("",)),
    "resume after a kill on a GPU": ("resume", ("",)),
    "weights sent to vLLM over CUDA IPC or NCCL; `rollout.mode=colocate`": None,
    "several GPUs: `sharding=ddp`, FSDP2, DeepSpeed with NCCL": None,
}
"""Feature → the block and the beginnings of the cases that cover it; None for what needs two GPUs or has no case."""


def summary(block: str, cases: Sequence[kit.Case], file: Path) -> str:
    """One row per case for the terminal."""
    records = kit.Record.read(file)
    total_s = sum(case.expected_s for case in cases)
    lines = [f"{block}: {len(cases)} cases, about {total_s / 60:.0f} minutes on an H200"]
    for case in cases:
        record = records.get(case.name)
        lines.append(f"  {case.name:44} {record.status if record else NOT_RUN}")
    return "\n".join(lines)


def write_block(block: str, cases: Sequence[kit.Case], file: Path) -> None:
    """Write BLOCK.md next to BLOCK.jsonl."""
    file.with_suffix(".md").write_text(block_page(block, cases, kit.Record.read(file)), encoding="utf-8")


def block_page(block: str, cases: Sequence[kit.Case], records: dict[str, kit.Record]) -> str:
    module = importlib.import_module(block)
    machines = {_where(record) for record in records.values()}
    title = (module.__doc__ or block).splitlines()[0].rstrip(".")
    head = [f"# GPU: {title}", "", f"`python tests/gpu/run.py {block}`", ""]
    head += [f"Measured on {'; '.join(sorted(machines))}." if machines else f"All cases: {NOT_RUN}.", ""]
    rows = ["| case | result | values | note | s |", "| --- | --- | --- | --- | ---: |"]
    for case in cases:
        record = records.get(case.name)
        if record is None:
            rows.append(f"| {case.name} | {NOT_RUN} | | | |")
            continue
        values = ", ".join(f"{name} {_number(value)}" for name, value in record.values.items())
        note = record.note.replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {case.name} | {record.status} | {values} | {note} | {record.seconds:.1f} |")
    return "\n".join([*head, *rows]) + "\n"


def index_page(blocks: Sequence[str], directory: Path) -> str:
    """A row per block: whether it ran, where, and how many of its cases passed."""
    lines = [
        "# Features that need a GPU: run, or written and not run",
        "",
        "The GPU kit (`tests/gpu/`) has one command per block. `python tests/gpu/run.py page` writes this page from",
        "the results in `docs/results/gpu/`. A block without results on a GPU runs in the tests at tiny size, on a",
        "CPU and on a simulated GPU: that finds typing errors and tensors on the wrong device, and says nothing",
        "about speed, memory or kernels.",
        "",
        "| block | what it covers | state | cases |",
        "| --- | --- | --- | --- |",
    ]
    target = kit.Target("cuda", False, directory)
    for block in blocks:
        module = importlib.import_module(block)
        cases = module.cases(target)
        records = kit.Record.read(directory / f"{block}.jsonl")
        title = (module.__doc__ or block).splitlines()[0].rstrip(".")
        link = f"[{block}](gpu/{block}.md)" if records else f"`{block}`"
        lines.append(f"| {link} | {title} | {_state(records)} | {_counts(cases, records)} |")
    lines += ["", "| feature | state |", "| --- | --- |"]
    lines += [f"| {feature} | {_feature_state(directory, covered)} |" for feature, covered in FEATURES.items()]
    return "\n".join(lines) + "\n"


def write(blocks: Sequence[str]) -> None:
    INDEX.write_text(index_page(blocks, FOLDER), encoding="utf-8")


def is_current(blocks: Sequence[str]) -> bool:
    """True if `write` would change nothing."""
    return INDEX.exists() and INDEX.read_text(encoding="utf-8") == index_page(blocks, FOLDER)


def _state(records: dict[str, kit.Record]) -> str:
    if not records:
        return NOT_RUN
    return "run on " + "; ".join(sorted({_where(record) for record in records.values()}))


def _feature_state(directory: Path, covered: tuple[str, tuple[str, ...]] | None) -> str:
    """State of a feature: the results of the cases that cover it."""
    if covered is None:
        return f"{NOT_RUN}; no case"
    block, starts = covered
    records = kit.Record.read(directory / f"{block}.jsonl")
    states = [record.status for name, record in records.items() if name.startswith(starts)]
    if not states:
        return f"{NOT_RUN}: `{block}`"
    return ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states))) + f": `{block}`"


def _counts(cases: Sequence[kit.Case], records: dict[str, kit.Record]) -> str:
    counts = dict.fromkeys(("passed", "failed", "error", "killed", "skipped"), 0)
    for case in cases:
        if case.name in records:
            counts[records[case.name].status] += 1
    counts[NOT_RUN] = len(cases) - sum(counts.values())
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _where(record: kit.Record) -> str:
    m = record.machine
    return (
        f"{m['device']}, {m['date']}, torch {m['torch']}, transformers {m['transformers']}, Python {m['python']}, "
        f"rlhf_lab {m['rlhf_lab']} ({m['commit']})"
    )


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
