"""Command `publish RUN to=DIR|hub:OWNER/NAME`: check, write to a temporary directory, then publish at once."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import make_dir, read_object, replacing
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.gates import gate
from rlhf_lab.interop.publishing import card, hub, model_files, refusals, same_model
from rlhf_lab.interop.publishing.leaks import leaks
from rlhf_lab.interop.publishing.provenance import PublishedModel, PublishRequest
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.results.folders import find_run


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
    view = card.View(request, provenance, tuple(reasons), gated)
    return _to_hub(view, api) if request.on_hub else _to_dir(view)


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


def _to_dir(view: card.View) -> str:
    target = Path(view.request.to)
    if target.exists():
        raise ConfigError(f"to={target} already exists; name a new directory, or remove it first")
    make_dir(target.absolute().parent)
    # The directory is renamed when it is complete, so a failure leaves nothing behind.
    with replacing(target) as temporary:
        temporary.mkdir()
        _write(view, temporary)
    return str(target)


def _to_hub(view: card.View, api: Any) -> str:
    api = hub.client() if api is None else api
    with tempfile.TemporaryDirectory(prefix="publish-", dir=scratch_dir()) as temporary:
        directory = Path(temporary) / "model"
        directory.mkdir()
        _write(view, directory)
        console.inform(f"uploading to {view.request.name}", markup=False)
        run = view.provenance.run
        message = f"{run.recipe} {run.manifest.get('key')} by rlhf_lab {view.provenance.code}"
        return hub.send(directory, view.request.name, public=view.request.public, message=message, api=api)


def _write(view: card.View, directory: Path) -> None:
    """Write model and card to a directory.

    Raise an error if the written model differs from the run's, or if the files contain content that must not be
    published.
    """
    request, model = view.request, view.provenance.model_dir
    # The published files are loaded and compared with the run, so that a wrong conversion is noticed here.
    console.inform("writing the model, and comparing it with that of the run")
    if request.adapter:
        model_files.write_adapter(model, directory, request.base)
        distance = same_model.require_same_adapter(model, directory)
    else:
        model_files.write_model(model, directory, request.dtype)
        distance = same_model.require_same(model, directory, request.dtype)
    text = card.render(replace(view, distance=distance), directory)
    (directory / "README.md").write_text(text, encoding="utf-8")
    # Last, so that the card is searched as well.
    if problems := leaks(directory):
        raise DataError(f"{view.provenance.directory} cannot be published: " + "; ".join(problems))
