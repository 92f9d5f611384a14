"""Command `publish RUN to=DIR|hub:OWNER/NAME`: check, write to a temporary directory, then publish at once."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError, LabError
from rlhf_lab.core.files import make_dir, read_object, replacing
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.gates import gate
from rlhf_lab.interop.publishing import card, model_files, refusals, same_model
from rlhf_lab.interop.publishing.leaks import leaks
from rlhf_lab.interop.publishing.provenance import PublishedModel, PublishRequest
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.results.folders import find_run

REPLACED = [
    *("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.bin", "*.model", "merges.txt", "vocab.txt")
]
"""Patterns of files from an earlier publication that are deleted if the new one has no file of that name."""


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
    api = HfApi() if api is None else api
    with tempfile.TemporaryDirectory(prefix="publish-", dir=scratch_dir()) as temporary:
        directory = Path(temporary) / "model"
        directory.mkdir()
        _write(view, directory)
        console.inform(f"uploading to {view.request.name}")
        run = view.provenance.run
        message = f"{run.recipe} {run.manifest.get('key')} by rlhf_lab {view.provenance.code}"
        return send(directory, view.request.name, public=view.request.public, message=message, api=api)


def send(directory: Path, name: str, *, public: bool, message: str, api: Any) -> str:
    """Create the repository if it does not exist, and replace its model with that in the directory. Return its address.

    Args:
        directory: the published files.
        name: `owner/name`.
        public: True allows a public repository. Otherwise a new repository is private, and a public one is an error.
        message: message of the commit.
        api: a `huggingface_hub.HfApi`.
    Raises:
        LabError: the hub refused the upload, or nobody is logged in.
    """
    try:
        address = str(api.create_repo(name, repo_type="model", private=not public, exist_ok=True))
        # `create_repo` does not change the visibility of an existing repository, so it is checked.
        if not public and not api.repo_info(name, repo_type="model").private:
            raise LabError(
                f"{name} is a public repository on the hub, so nothing was uploaded; set public=true to publish there, "
                "or name another repository"
            )
        api.upload_folder(
            repo_id=name,
            folder_path=str(directory),
            commit_message=message,
            repo_type="model",
            delete_patterns=REPLACED,
        )
    except LabError:
        raise
    except Exception as error:  # the client has a different exception type for each of many failures
        # only the first line, because the messages of the client have several
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300].rstrip(".")
        raise LabError(
            f"the hub refused {name}: {reason}. Log in with `hf auth login` (with a token that may write) and check "
            "the name. No partial upload exists, so the same command can be repeated"
        ) from error
    return address


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
