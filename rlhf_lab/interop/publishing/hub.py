"""Sends a published folder to a repository of the Hugging Face hub, in one commit."""

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
"""Files of an earlier publication that are removed where the new one has none of that name."""


def client() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingDependency(*OPTIONAL["huggingface_hub"]) from None
    return HfApi()


def send(folder: Path, name: str, *, public: bool, message: str, api: Any) -> str:
    """Make the repository where it is not there, and replace its model by the folder's. Returns its address.

    Args:
        name: `owner/name`.
        public: without it a new repository is private, and one that is public is refused.
        api: a `huggingface_hub.HfApi`.
    Raises:
        LabError: the hub refused, or nobody is logged in.
    """
    try:
        address = str(api.create_repo(name, repo_type="model", private=not public, exist_ok=True))
        # an existing repository keeps its visibility, whatever `create_repo` was asked for
        if not public and not api.repo_info(name, repo_type="model").private:
            raise LabError(
                f"{name} is a public repository on the hub, and nothing was sent; write public=true to publish there, "
                "or name another repository"
            )
        api.upload_folder(
            repo_id=name, folder_path=str(folder), commit_message=message, repo_type="model", delete_patterns=REPLACED
        )
    except LabError:
        raise
    except Exception as error:  # the client raises another type for each of a dozen failures
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300].rstrip(".")
        raise LabError(
            f"the hub did not take {name}: {reason}. Log in with `hf auth login` (a token that may write) and check "
            "the name; a commit is taken whole or not at all, so the same command can be given again"
        ) from error
    return address
