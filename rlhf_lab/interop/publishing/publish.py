"""`publish RUN to=FOLDER|hub:OWNER/NAME`: checks first, then the files in a temporary folder, then all at once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import make_folder, read_json, replacing
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.gates import gate
from rlhf_lab.interop.publishing import card, hub, model_files, refusals, same_model
from rlhf_lab.interop.publishing.leaks import leaks
from rlhf_lab.interop.publishing.provenance import Provenance
from rlhf_lab.results.folders import find_run

HUB = "hub:"


@dataclass(frozen=True)
class Request:
    """What to publish, and where.

    Attributes:
        to: a folder that is not there yet, or `hub:OWNER/NAME`.
        adapter: publish the adapter alone.
        base: hub id of the base, where the run knows it as a local folder.
        despite: names of `refusals.DESPITE` that are agreed to.
        public: whether a repository of the hub may be public.
        license: its identifier on the hub; empty names none.
        gate: a suite that the run is held to; `gate_run` is the run that asked its model, else the run itself.
    """

    run: str
    to: str
    dtype: model_files.Dtype = "saved"
    adapter: bool = False
    base: str = ""
    despite: Sequence[str] = ()
    public: bool = False
    license: str = ""
    gate: str = ""
    gate_run: str = ""


def publish(request: Request, *, api: Any = None) -> str:
    """Publish a run's model. Returns the folder or address.

    Args:
        api: a `huggingface_hub.HfApi` to send with; None makes one.
    Raises:
        ConfigError: the request cannot be met, as of an adapter that is not there.
        DataError: the run is not publishable, or was not agreed to be published as it is.
        ArtifactError: files of the run are damaged, or the published ones are not the same model.
        LabError: the hub refused.
    """
    made = Provenance(find_run(request.run))
    refusals.require_publishable(made)
    if request.adapter and not made.has_adapter:
        raise ConfigError(
            f"adapter=true: {made.folder} was trained without an adapter (model.lora.rank=0); leave it out"
        )
    reasons = refusals.reasons_against(made)
    gated = _gate(made, request)
    if gated is not None and not gated.passed:
        reasons.append("failed_gate")
    refusals.require_agreed(made, reasons, request.despite)
    if request.to.startswith(HUB):
        return _to_hub(made, request, reasons, gated, api)
    return _to_folder(made, request, reasons, gated)


def _gate(made: Provenance, request: Request) -> gate.Decision | None:
    """What the suite says; None where none was named. Raises DataError where the gated run asked another model."""
    if not request.gate:
        return None
    asked = find_run(request.gate_run or request.run)
    if asked != made.folder:
        policy = ((read_json(asked / "manifest.json") or {}).get("needs") or {}).get("policy") or {}
        key = made.run.manifest.get("key")
        # a run that trained on from the model measured another one
        if key is None or policy.get("key") != key or (asked / "model").is_dir():
            raise DataError(
                f"gate_run={asked} did not ask the model of {made.folder}: run eval_suite with needs.policy"
            )
    return gate.judge(request.gate, str(asked))


def _to_folder(made: Provenance, request: Request, reasons: Sequence[str], gated: gate.Decision | None) -> str:
    target = Path(request.to)
    if target.exists():
        raise ConfigError(f"to={request.to} is there already; name a folder that is not, or remove it first")
    make_folder(target.absolute().parent)
    with replacing(target) as temporary:
        temporary.mkdir()
        _write(made, request, reasons, gated, temporary, target.name)
    return str(target)


def _to_hub(made: Provenance, request: Request, reasons: Sequence[str], gated: gate.Decision | None, api: Any) -> str:
    name = request.to.removeprefix(HUB)
    api = hub.client() if api is None else api
    with tempfile.TemporaryDirectory(prefix="publish-", dir=scratch_dir()) as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        _write(made, request, reasons, gated, folder, name)
        message = f"{made.run.recipe} {made.run.manifest.get('key')} by rlhf_lab {made.code}"
        return hub.send(folder, name, public=request.public, message=message, api=api)


def _write(
    made: Provenance,
    request: Request,
    reasons: Sequence[str],
    gated: gate.Decision | None,
    folder: Path,
    name: str,
) -> None:
    """Fill a folder with model and card. Raises where the model is another one or something must not be published."""
    if request.adapter:
        model_files.write_adapter(made.model_folder, folder, request.base)
        distance = same_model.require_same_adapter(made.model_folder, folder)
    else:
        model_files.write_model(made.model_folder, folder, request.dtype)
        distance = same_model.require_same(made.model_folder, folder, request.dtype)
    view = card.View(
        made=made,
        name=name,
        adapter=request.adapter,
        dtype=request.dtype,
        base=request.base,
        license=request.license,
        despite=tuple(reasons),
        gated=gated,
        distance=distance,
    )
    (folder / "README.md").write_text(card.render(view, folder), encoding="utf-8")
    if problems := leaks(folder):
        raise DataError(f"{made.folder} is not published: " + "; ".join(problems))
