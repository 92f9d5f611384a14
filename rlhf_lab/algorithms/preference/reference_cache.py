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
from rlhf_lab.models.weights import stored_as
from rlhf_lab.training.run import Run


def reference_logps(run: Run, reference: nn.Module, pairs: Sequence[PairRows], codebooks: int = 0) -> PairLogps:
    """Log-probabilities of both replies of each pair under the reference, from the cache when they are there.

    They are computed in the arithmetic of training (`runtime.dtype`), so that margins start at 0.

    Args:
        codebooks: of which they are wanted by themselves; see `models.pair_rows.reply_logps`.
    """
    name = _cache_key(run, reference, pairs) + (f"-{codebooks}" if codebooks else "")
    path = cache_folder(run) / f"{name}.safetensors"
    shape = (len(pairs), codebooks) if codebooks else (len(pairs),)
    stored, problem = ranks.on_main(lambda: _read_logps(path, shape))
    if stored is not None:
        run.note(f"reference log-probabilities of {len(pairs)} pairs reused from {path}")
        return stored
    with run.autocast():
        computed = pair_logps(reference, pairs, run.device, codebooks)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        # The two sides are interleaved views of one tensor, which safetensors refuses to store.
        tensors = {"chosen": computed.chosen.contiguous(), "rejected": computed.rejected.contiguous()}
        save_file(tensors, temporary, metadata={"sha256": _logps_digest(computed)})
    run.note(f"reference log-probabilities of {len(pairs)} pairs computed{problem}; kept in {path}")
    return computed


def cache_folder(run: Run) -> Path:
    return Path(run.config.outputs) / "cache" / "reference_logps"


def _read_logps(path: Path, shape: tuple[int, ...]) -> tuple[PairLogps | None, str]:
    """(the stored values, "") or (None, why a file that is there cannot be used)."""
    if not path.exists():
        return None, ""
    try:
        with safe_open(path, framework="pt") as file:
            stored = PairLogps(file.get_tensor("chosen"), file.get_tensor("rejected"))
            metadata = file.metadata() or {}
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        return None, f" again: the stored file is damaged ({str(error).splitlines()[0][:100]})"
    if any(logps_B.shape != shape for logps_B in stored) or metadata.get("sha256") != _logps_digest(stored):
        return None, " again: the stored file is damaged (wrong shape or values)"
    return stored, ""


def _logps_digest(logps: PairLogps) -> str:
    """SHA-256 of the numbers: safetensors has no checksum of its own."""
    return sha256(b"".join(values.cpu().contiguous().numpy().tobytes() for values in logps)).hexdigest()


def _cache_key(run: Run, reference: nn.Module, pairs: Sequence[PairRows]) -> str:
    """Hash of the reference's weights and config, the token rows, the arithmetic and the versions that compute."""
    digest = sha256()
    config = getattr(reference, "config", None)
    # Keys with an underscore say where the model was loaded from. The weights are hashed instead, so that a model that
    # was moved keeps its key and a hub model that was updated under the same name gets another.
    settings = {} if config is None else {k: v for k, v in config.to_dict().items() if not k.startswith("_")}
    device = torch.device(run.device).type
    arithmetic = [run.config.runtime.dtype, str(blocks_dtype(reference)), stored_as(reference)]
    header = [type(reference).__name__, settings, *arithmetic, device, __version__, torch.__version__]
    digest.update(json.dumps(header, sort_keys=True, default=str).encode())
    for name, tensor in whole_tensors(reference):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    for pair in pairs:
        for prompt, reply in pair:
            for ids in (prompt, reply):
                # With its length in front: the same tokens divided otherwise between prompt and reply hash otherwise.
                digest.update(len(ids).to_bytes(4, "little") + np.array(ids, dtype=np.int64).tobytes())
    return digest.hexdigest()[:24]
