"""`plan table`: memory of published model sizes, 117M to 70B, as tables for the console or a Markdown page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from rich.table import Table

from rlhf_lab.memory.devices import CARD_GB, CARDS, MOST_DEVICES, smallest_count, smallest_split, update_bytes
from rlhf_lab.memory.show import number, size
from rlhf_lab.memory.sizes import PUBLISHED, ModelShape
from rlhf_lab.memory.state import STRATEGIES, Training, bytes_per_parameter, frozen_state, trained_state
from rlhf_lab.memory.work import ComputePrecision, Rows, sampling, train_pass
from rlhf_lab.models.settings import Stored

TOKENS, PROCESSES, RANK, SAMPLED = 2048, 8, 16, 64
WEIGHTS: tuple[Stored, ...] = get_args(Stored)
FULL = Training("bfloat16", checkpointing=True)
ADAPTER = Training("bfloat16", rank=RANK, checkpointing=True)
MEASURED = "With several processes, two were measured (docs/memory.md); larger numbers are calculated."
COMMAND = "python -m rlhf_lab plan table"
CARD_NAMES = [f"{card} GB" for card in CARDS]


@dataclass(frozen=True)
class Grid:
    """A table with a title and a note."""

    title: str
    remark: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def rich(self) -> Table:
        table = Table(title=f"{self.title}\n[dim]{self.remark}[/]", title_justify="left")
        for index, name in enumerate(self.header):
            table.add_column(name, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        rules = ["---", *("--:" for _ in self.header[1:])]
        lines = [" | ".join(cells) for cells in (self.header, rules, *self.rows)]
        table = [f"| {line} |" for line in lines]
        return "\n".join([f"## {self.title}", "", self.remark, "", *table])


def grids() -> list[Grid]:
    """Return all tables; the derivation is first."""
    return [
        _parameter_grid(),
        _size_grid(),
        _roles_grid(),
        _strategy_grid(),
        _card_grid(),
        _adapter_grid(),
        _split_grid(),
    ]


def page(tables: Sequence[Grid]) -> str:
    """Return the tables as a Markdown page that names its command."""
    head = (
        "# Memory plan, 117M to 70B\n\n"
        f"Calculated, not measured: `{COMMAND} to=docs/results/memory_plan.md`. The derivation, and the differences "
        "between estimates and measured peaks: [docs/memory.md](../memory.md). Models are shapes from public configs; "
        "nothing was downloaded.\n\n"
        "A card's GB are 10⁹ bytes (80 GB = 74.5 GiB); all other sizes are GiB and MiB.\n"
    )
    written = "\n\n".join(grid.markdown() for grid in tables)
    return f"{head}\n{written}\n"


def row_of(shape: ModelShape) -> Rows:
    """Return one row of `TOKENS` tokens, or of all positions if there are fewer; half of it is the response."""
    width = min(TOKENS, shape.positions or TOKENS)
    return Rows(1, width // 2, width - width // 2)


def _model_grid(title: str, note: str, columns: Sequence[str], cells: Callable[[ModelShape], Sequence[str]]) -> Grid:
    """Return a table with a row for each published model: its name, then its cells."""
    return Grid(title, note, ("model", *columns), [[shape.name, *cells(shape)] for shape in PUBLISHED.values()])


def _parameter_grid() -> Grid:
    names = ("weights", "bfloat16 copy", "gradient", "moments")
    rows = []
    trainings = [Training("bfloat16"), Training("bfloat16", "muon"), Training(), Training(optimizer="muon")]
    for training in (*trainings, Training("bfloat16", "adamw_8bit")):
        byte_counts = bytes_per_parameter(training)
        cells = [str(byte_counts.get(name, 0)) for name in names]
        rows.append([f"{training.optimizer}, {training.precision}", *cells, str(sum(byte_counts.values()))])
    rows.append(["frozen, or under an adapter", "4", "2 in its own pass under autocast", "0", "0", "4 to 6"])
    rows.append(["the same, model.weights=bfloat16", "2", "0", "0", "0", "2"])
    rows.append(["the same, model.weights=nf4", "0.52", "0", "0", "0", "0.52"])
    note = "Bytes of a parameter that is trained with engine=native; Muon's are those of a hidden matrix."
    return Grid("Bytes per parameter", note, ("training", *names, "sum"), rows)


def _size_grid() -> Grid:
    def cells(shape: ModelShape) -> list[str]:
        rows = row_of(shape)
        simple = train_pass(shape, rows, ComputePrecision("bfloat16", cuda=True), FULL)
        checkpointed = train_pass(shape, rows, ComputePrecision("bfloat16", checkpointing=True, cuda=True), FULL)
        sampler = sampling(shape, 1, 1, rows.prompt, rows.response, 2)
        frozen = frozen_state(shape).total
        trained = trained_state(shape, Training("bfloat16")).total
        work = (simple.activations, checkpointed.activations, simple.logits, sampler.cache)
        return [number(shape.parameters), *map(size, (frozen, trained, *work))]

    header = ("parameters", "weights", "trained", "activations", "checkpointed", "logits", "KV cache")
    note = (
        f"On one device, AdamW, bfloat16; activations, logits and KV cache of one row of {TOKENS} tokens (GPT-2: "
        "1024), half of it response; no value under logits if they are recomputed instead of kept."
    )
    return _model_grid("Memory of a model", note, header, cells)


def _roles_grid() -> Grid:
    def cells(shape: ModelShape) -> list[str]:
        trained = trained_state(shape, Training("bfloat16")).total
        frozen = frozen_state(shape).total
        adapter = trained_state(shape, Training("bfloat16", rank=RANK)).total
        ppo = 2 * trained + 2 * frozen  # policy and critic; reference and reward model
        grpo = trained + 2 * frozen
        return [size(count) for count in (trained, trained + frozen, adapter, ppo, grpo)]

    header = ("SFT", "DPO", f"DPO, LoRA {RANK}", "PPO", "GRPO")
    note = (
        "Model states only, on one device, bfloat16. DPO has policy and reference (an adapter's base is its "
        "reference), PPO policy, critic, reference and reward model, GRPO all but the critic; all of one shape."
    )
    return _model_grid("Memory of algorithms", note, header, cells)


def _strategy_grid() -> Grid:
    def cells(shape: ModelShape) -> list[str]:
        return [size(update_bytes(shape, row_of(shape), FULL, name, PROCESSES)) for name in names]

    names = [name for name in STRATEGIES if name != "none"]
    note = (
        f"One of {PROCESSES} processes in an update on one row of {TOKENS} tokens, AdamW, bfloat16, checkpointing. "
        f"{MEASURED}"
    )
    return _model_grid("Sharding strategies", note, names, cells)


def _card_grid() -> Grid:
    def cells(shape: ModelShape) -> list[str]:
        return [str(smallest_count(shape, row_of(shape), FULL, "fsdp_full", card * CARD_GB) or "–") for card in CARDS]

    note = (
        "Smallest power of two of cards for SFT with `sharding=fsdp_full`, AdamW, bfloat16, checkpointing, one row of "
        f"{TOKENS} tokens per card; “–”: more than {MOST_DEVICES}. {MEASURED}"
    )
    return _model_grid("Minimum number of cards, all parameters trained", note, CARD_NAMES, cells)


def _adapter_grid() -> Grid:
    def peak_and_card(shape: ModelShape, stored: Stored) -> str:
        if stored == "nf4" and shape.family == "gpt2":
            return "–"  # its layers cannot be packed
        needed = update_bytes(shape, row_of(shape), replace(ADAPTER, stored=stored), "none", 1)
        sufficient = [card for card in CARDS if needed <= card * CARD_GB]  # in ascending order
        smallest = f"{sufficient[0]} GB" if sufficient else "–"
        return f"{size(needed)}, {smallest}"

    def cells(shape: ModelShape) -> list[str]:
        return [number(ADAPTER.trained(shape)), *(peak_and_card(shape, stored) for stored in WEIGHTS)]

    note = (
        f"`model.lora.rank={RANK}` on every linear layer, bfloat16 passes, checkpointing, one row of {TOKENS} tokens: "
        "the peak of an update of SFT or DPO, and the smallest card, by storage of the base (`model.weights`)."
    )
    return _model_grid("One card, an adapter trained", note, ("trained", *WEIGHTS), cells)


def _split_grid() -> Grid:
    def cells(shape: ModelShape) -> list[str]:
        splits = [smallest_split(shape, row_of(shape), FULL, card * CARD_GB) for card in CARDS]
        return ["–" if split is None else "×".join(map(str, split)) for split in splits]

    note = (
        "Smallest tensor × pipeline split without data parallelism, calculated; rlhf_lab does not train this way. "
        "Tensor parallelism shards matrices within a machine (up to 8), a pipeline assigns full layers; its first "
        "stage keeps the activations of as many micro-batches as there are stages."
    )
    return _model_grid("Tensor and pipeline parallelism", note, CARD_NAMES, cells)
