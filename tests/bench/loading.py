"""Host memory that each of two gloo processes takes to load a policy and its reference and to shard them (FSDP).

python tests/bench/loading.py [--layers 24] [--hidden 512] [--file bfloat16|float32]

What is counted is memory of the process itself: pages of a mapped file, which the system shares and can drop, are not.
Freed memory returns to the system at once here; by default glibc keeps some of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "numeric")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--file", choices=["bfloat16", "float32"], default="bfloat16", help="dtype of the stored model")
    options = parser.parse_args()

    from processes import together

    with tempfile.TemporaryDirectory() as directory:
        size = save_policy(Path(directory), options.layers, options.hidden, options.file)
        print(
            f"policy of {size:.0f} MiB in float32 from files in {options.file}, and a reference as large, divided too"
        )
        together(load_and_divide, directory)


def save_policy(directory: Path, layers: int, hidden: int, dtype: str) -> float:
    """A new Llama with random weights; returns its MiB in float32."""
    import torch

    from rlhf_lab.models.build import save_model, scratch_policy
    from rlhf_lab.models.encoding import Encoder
    from rlhf_lab.models.settings import Scratch
    from rlhf_lab.models.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(["a few words to know"], 100)
    model = scratch_policy(Scratch(layers=layers, hidden=hidden, heads=8), tokenizer, 0)
    save_model(model.to(getattr(torch, dtype)), Encoder(tokenizer), directory)
    return sum(p.numel() * 4 for p in model.parameters()) / 2**20


def load_and_divide(policy: str) -> None:
    """Load and shard the model as a stage does before its first step, in one of the processes."""
    from support import planned

    from rlhf_lab.config import registry
    from rlhf_lab.core import ranks
    from rlhf_lab.training.optim import TrainedPart
    from rlhf_lab.training.run import Run
    from rlhf_lab.training.settings import TrainingSettings
    from rlhf_lab.training.start import load_policy_twice

    sharded = ("sharding=fsdp_full", "sharding.processes=2", "sharding.reference=sharded")
    stage = planned("dpo", "model=hf", f"model.path={policy}", f"needs.policy={policy}", "needs.reward=null", *sharded)
    run = Run(Path(policy), stage.config, {"policy": policy})
    floor = own_mib()
    with Peak() as peak:
        model, reference, _ = load_policy_twice(run)
        parts = {"model": TrainedPart(model, 1e-4, None)}
        algorithm: Any = SimpleNamespace(
            parts=lambda: parts,
            frozen_modules=lambda: [reference],
            settings=TrainingSettings(optimizer="adamw", lr=1e-4),
        )
        engine = registry.build("sharding", run.config.sharding, algorithm, run)
    lines = ranks.exchange(f"peak {peak.mib - floor:6.0f} MiB, then {own_mib() - floor:6.0f} MiB")
    engine.close()
    if ranks.is_main():
        for rank, line in enumerate(lines):
            print(f"process {rank}: {line}")


class Peak:
    """Maximum of the process's own memory within the block, sampled every millisecond.

    Attributes:
        mib: that maximum.
    """

    def __enter__(self) -> Peak:
        self.mib = own_mib()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._style_row)
        self.thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.over.set()
        self.thread.join()

    def _style_row(self) -> None:
        while not self.over.is_set():
            self.mib = max(self.mib, own_mib())
            time.sleep(0.001)


def own_mib() -> float:
    """MiB of the process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) / 2**10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


if __name__ == "__main__":
    main()
