"""Command `publish RUN to=DIR|hub:OWNER/NAME`: check, write to a temporary directory, then publish at once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import make_dir, read_object, replacing
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.gates import gate
from rlhf_lab.interop.publishing import card, hub, model_files, refusals, same_model
from rlhf_lab.interop.publishing.leaks import leaks
from rlhf_lab.interop.publishing.provenance import PublishedModel
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.results.folders import find_run

HUB = "hub:"


@dataclass(frozen=True)
class PublishRequest:
    """Request to publish a model.

    Attributes:
        run: the run, as the user named it.
        to: a directory that does not exist yet, or `hub:OWNER/NAME`.
        dtype: dtype of the published weights.
        adapter: True to publish only the adapter.
        base: hub id of the base, if the run has it as a local directory.
        despite: accepted reasons against publishing, names of `refusals.DESPITE`.
        public: True if a hub repository may be public.
        license: identifier of the license on the hub; empty for none.
        gate: a suite that the run has to pass; empty for none.
        gate_run: the run that evaluated the model for the gate; empty means the run itself.
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


def publish(request: PublishRequest, *, api: Any = None) -> str:
    """Publish a run's model. Return its directory or address.

    Args:
        request: the request.
        api: a `huggingface_hub.HfApi` for the upload; None creates one.
    Raises:
        ConfigError: the request is impossible, e.g. because the run has no adapter.
        DataError: the run cannot be published, or a reason against it was not accepted.
        ArtifactError: files of the run are damaged, or the published model differs from it.
        LabError: the hub refused the upload.
    """
    # All refusals come before the first file is written.
    provenance = PublishedModel(find_run(request.run))
    refusals.require_publishable(provenance)
    if request.adapter and not provenance.has_adapter:
        raise ConfigError(
            f"adapter=true: {provenance.directory} was trained without an adapter (model.lora.rank=0); leave it out"
        )
    reasons = refusals.reasons_against(provenance)
    gated = _gate(provenance, request)
    if gated is not None and not gated.passed:
        reasons.append("failed_gate")
    refusals.require_agreed(provenance, reasons, request.despite)
    if request.to.startswith(HUB):
        return _to_hub(provenance, request, reasons, gated, api)
    return _to_dir(provenance, request, reasons, gated)


def _gate(provenance: PublishedModel, request: PublishRequest) -> gate.Decision | None:
    """Return the decision of the gate; None if none is named. Raise DataError if its run evaluated another model."""
    if not request.gate:
        return None
    # A run that evaluates its own model can be its own gate's run.
    requested = find_run(request.gate_run or request.run)
    if requested != provenance.directory:
        manifest = read_object(requested / "manifest.json")
        policy = (manifest.get("needs") or {}).get("policy") or {}
        # A stage is recorded by its key, and a model that the user named by its content.
        known = (provenance.run.manifest.get("key"), model_identity(str(provenance.model_dir)))
        # If the gate's run has a model, it trained on from this one and evaluated the result instead.
        if policy.get("key") not in filter(None, known) or (requested / "model").is_dir():
            raise DataError(
                f"gate_run={requested} did not evaluate the model of {provenance.directory}; run eval_suite with "
                f"needs.policy={provenance.model_dir}"
            )
    return gate.judge(request.gate, str(requested))


def _to_dir(
    provenance: PublishedModel, request: PublishRequest, reasons: Sequence[str], gated: gate.Decision | None
) -> str:
    target = Path(request.to)
    if target.exists():
        raise ConfigError(f"to={request.to} already exists; name a new directory, or remove it first")
    make_dir(target.absolute().parent)
    # The directory is renamed when it is complete, so a failure leaves nothing behind.
    with replacing(target) as temporary:
        temporary.mkdir()
        _write(provenance, request, reasons, gated, temporary, target.name)
    return str(target)


def _to_hub(
    provenance: PublishedModel, request: PublishRequest, reasons: Sequence[str], gated: gate.Decision | None, api: Any
) -> str:
    name = request.to.removeprefix(HUB)
    api = hub.client() if api is None else api
    # All files are written and checked before the upload starts.
    with tempfile.TemporaryDirectory(prefix="publish-", dir=scratch_dir()) as temporary:
        directory = Path(temporary) / "model"
        directory.mkdir()
        _write(provenance, request, reasons, gated, directory, name)
        console.inform(f"uploading to {name}", markup=False)
        run = provenance.run
        message = f"{run.recipe} {run.manifest.get('key')} by rlhf_lab {provenance.code}"
        return hub.send(directory, name, public=request.public, message=message, api=api)


def _write(
    provenance: PublishedModel,
    request: PublishRequest,
    reasons: Sequence[str],
    gated: gate.Decision | None,
    directory: Path,
    name: str,
) -> None:
    """Write model and card to a directory.

    Raise an error if the written model differs from the run's, or if the files contain content that must not be
    published.
    """
    # The published files are loaded and compared with the run, so that a wrong conversion is noticed here.
    console.inform("writing the model, and comparing it with that of the run")
    if request.adapter:
        model_files.write_adapter(provenance.model_dir, directory, request.base)
        distance = same_model.require_same_adapter(provenance.model_dir, directory)
    else:
        model_files.write_model(provenance.model_dir, directory, request.dtype)
        distance = same_model.require_same(provenance.model_dir, directory, request.dtype)
    view = card.View(
        provenance=provenance,
        name=name,
        adapter=request.adapter,
        dtype=request.dtype,
        base=request.base,
        license=request.license,
        despite=tuple(reasons),
        gated=gated,
        distance=distance,
    )
    (directory / "README.md").write_text(card.render(view, directory), encoding="utf-8")
    # Last, so that the card is searched as well.
    if problems := leaks(directory):
        raise DataError(f"{provenance.directory} cannot be published: " + "; ".join(problems))
