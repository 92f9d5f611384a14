"""Log-probabilities of a corpus under the frozen reference, computed once and cached on disk.

The file is `outputs/cache/reference_logps/<key>.safetensors`, shared by all runs with the same `outputs`. A resumed run
and all runs of a sweep over β or the loss read the values that the first run computed. The key hashes everything that
determines the values, so a file is never stale. Deleting the directory costs one forward pass.
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
from rlhf_lab.models.pair_rows import PairRows, pair_logps
from rlhf_lab.models.sharded import blocks_dtype, full_tensors
from rlhf_lab.models.weights import stored_as
from rlhf_lab.training.run import Run


def reference_logps(run: Run, reference: nn.Module, pairs: Sequence[PairRows], codebooks: int = 0) -> PairLogps:
    """Return the log-probabilities of both responses of each pair under the reference, from the cache if possible.

    They are computed in the precision of training (`runtime.dtype`), so that margins start at 0.

    Args:
        codebooks: number of codebooks with separate log-probabilities; see `models.pair_rows.response_logps`.
    """
    name = _cache_key(run, reference, pairs) + (f"-{codebooks}" if codebooks else "")
    path = cache_dir(run) / f"{name}.safetensors"
    shape = (len(pairs), codebooks) if codebooks else (len(pairs),)
    # Only the main process reads, so that all processes agree on whether to compute.
    stored, problem = ranks.on_main(lambda: _read_logps(path, shape))
    if stored is not None:
        run.note(f"reference log-probabilities of {len(pairs)} pairs reused from {path}")
        return stored
    with run.autocast():
        computed = pair_logps(reference, pairs, run.device, codebooks)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        # The two sides are interleaved views of one tensor, and safetensors refuses to store those.
        tensors = {"chosen": computed.chosen.contiguous(), "rejected": computed.rejected.contiguous()}
        save_file(tensors, temporary, metadata={"sha256": _logps_digest(computed)})
    run.note(f"reference log-probabilities of {len(pairs)} pairs computed{problem}; saved to {path}")
    return computed


def cache_dir(run: Run) -> Path:
    return Path(run.config.outputs) / "cache" / "reference_logps"


def _read_logps(path: Path, shape: tuple[int, ...]) -> tuple[PairLogps | None, str]:
    """Return (stored values, ""), or (None, reason why an existing file is unusable)."""
    if not path.exists():
        return None, ""
    try:
        with safe_open(path, framework="pt") as file:
            stored = PairLogps(file.get_tensor("chosen"), file.get_tensor("rejected"))
            metadata = file.metadata() or {}
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        return None, f" again: the stored file is damaged ({str(error).splitlines()[0][:100]})"
    has_wrong_shape = any(logps_B.shape != shape for logps_B in stored)
    if has_wrong_shape or metadata.get("sha256") != _logps_digest(stored):
        return None, " again: the stored file is damaged (wrong shape or values)"
    return stored, ""


def _logps_digest(logps: PairLogps) -> str:
    """Return the SHA-256 of the numbers, because safetensors has no checksum."""
    content = b"".join(values.cpu().contiguous().numpy().tobytes() for values in logps)
    return sha256(content).hexdigest()


def _cache_key(run: Run, reference: nn.Module, pairs: Sequence[PairRows]) -> str:
    """Return a hash of the reference's weights and config, the token rows, the precision and the library versions."""
    digest = sha256()
    config = getattr(reference, "config", None)
    # Keys that start with an underscore describe where the model was loaded from. The weights are hashed instead: a
    # model that was moved keeps its key, and a hub model that was updated under the same name gets a new one.
    values = {} if config is None else config.to_dict()
    settings = {name: value for name, value in values.items() if not name.startswith("_")}
    device = torch.device(run.device).type
    arithmetic = [run.config.runtime.dtype, str(blocks_dtype(reference)), stored_as(reference)]
    header = [type(reference).__name__, settings, *arithmetic, device, __version__, torch.__version__]
    digest.update(json.dumps(header, sort_keys=True, default=str).encode())
    for name, tensor in full_tensors(reference):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        # as bytes, because numpy has no bfloat16
        content = tensor.cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(content.numpy().data)
    for pair in pairs:
        for prompt, response in pair:
            for ids in (prompt, response):
                # The length prefix distinguishes the same tokens split differently between prompt and response.
                digest.update(len(ids).to_bytes(4, "little"))
                digest.update(np.array(ids, dtype=np.int64).tobytes())
    return digest.hexdigest()[:24]
