"""Upload of a published directory to a repository of the Hugging Face hub, in one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, LabError, MissingDependency

REPLACED = [
    "*.safetensors",
    "*.safetensors.index.json",
    "*.json",
    "*.jinja",
    "*.bin",
    "*.model",
    "merges.txt",
    "vocab.txt",
]
"""Patterns of files from an earlier publication that are deleted if the new one has no file of that name."""


def client() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingDependency(*OPTIONAL["huggingface_hub"]) from None
    return HfApi()


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
