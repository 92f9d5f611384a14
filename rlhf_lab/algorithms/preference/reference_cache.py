"""Log-probabilities of a corpus under the frozen reference, computed once and kept on disk.

`outputs/cache/reference_logps/<key>.safetensors`, shared by all runs with the same `outputs`: a resumed run and every
run of a sweep over β or the loss read what the first one computed. The key is a hash of everything that decides the
numbers, so a file is never stale; deleting the folder costs one forward pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from rlhf_lab import __version__
from rlhf_lab.core import ranks
from rlhf_lab.core.files import replacing
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.divided import blocks_dtype, whole_tensors
from rlhf_lab.models.pair_rows import PairRows, pair_logps
from rlhf_lab.training.run import Run


def reference_logps(run: Run, reference: nn.Module, pairs: Sequence[PairRows]) -> PairLogps:
    """Log-probabilities of both replies of each pair under the reference, from the cache when they are there.

    They are computed in the arithmetic of training (`runtime.dtype`), so that margins start at 0.
    """
    path = cache_folder(run) / f"{_key(run, reference, pairs)}.safetensors"
    found, problem = ranks.on_main(lambda: _read(path, len(pairs)))
    if found is not None:
        run.note(f"reference log-probabilities of {len(pairs)} pairs reused from {path}")
        return found
    with run.autocast():
        computed = pair_logps(reference, pairs, run.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        tensors = {"chosen": computed.chosen.contiguous(), "rejected": computed.rejected.contiguous()}
        save_file(tensors, part, metadata={"sha256": _digest(computed)})
    run.note(f"reference log-probabilities of {len(pairs)} pairs computed{problem}; kept in {path}")
    return computed


def cache_folder(run: Run) -> Path:
    return Path(run.config.outputs) / "cache" / "reference_logps"


def _read(path: Path, pairs: int) -> tuple[PairLogps | None, str]:
    """(the stored values, "") or (None, why a file that is there cannot be used)."""
    if not path.exists():
        return None, ""
    try:
        with safe_open(path, framework="pt") as file:
            found, digest = PairLogps(*map(file.get_tensor, ("chosen", "rejected"))), file.metadata() or {}
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        return None, f" again: the stored file is damaged ({str(error).splitlines()[0][:100]})"
    if any(values.shape != (pairs,) for values in found) or digest.get("sha256") != _digest(found):
        return None, " again: the stored file is damaged (wrong shape or values)"
    return found, ""


def _digest(logps: PairLogps) -> str:
    """SHA-256 of the numbers."""
    return sha256(b"".join(values.cpu().contiguous().numpy().tobytes() for values in logps)).hexdigest()


def _key(run: Run, reference: nn.Module, pairs: Sequence[PairRows]) -> str:
    """Hash of the reference's weights and config, the token rows, the arithmetic and the versions that compute."""
    digest = sha256()
    config = getattr(reference, "config", None)
    settings = {} if config is None else {k: v for k, v in config.to_dict().items() if not k.startswith("_")}
    device = torch.device(run.device).type
    arithmetic = [run.config.runtime.dtype, str(blocks_dtype(reference))]
    material = [type(reference).__name__, settings, *arithmetic, device, __version__, torch.__version__]
    digest.update(json.dumps(material, sort_keys=True, default=str).encode())
    for name, tensor in whole_tensors(reference):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    for pair in pairs:
        for part in (part for row in pair for part in row):
            digest.update(len(part).to_bytes(4, "little") + np.array(part, dtype=np.int64).tobytes())
    return digest.hexdigest()[:24]
