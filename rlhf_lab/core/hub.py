"""Availability of a Hugging Face hub repository: in the download cache, or over the network.

Libraries retry for a minute before they report that there is no network. This module tries once.
"""

from __future__ import annotations

import os
import threading
import urllib.request
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError

from rlhf_lab.core.http_client import ExchangeLimits, build_opener

CONNECT_SECONDS = 5.0
"""Maximum seconds to wait for the hub's answer, including the DNS look-up."""


def is_offline() -> bool:
    """Return True if the environment forbids access to the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON")


def endpoint() -> str:
    """Return the URL of the hub, or of the mirror named by HF_ENDPOINT."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def cache_dir() -> Path:
    """Return the directory of downloads from the hub."""
    # The same variables as in huggingface_hub, whose import would take longer than this look-up.
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def is_cached(kind: Literal["models", "datasets"], hub_id: str) -> bool:
    """Return True if any file of a hub repository is in the download cache."""
    if (cache_dir() / f"{kind}--{hub_id.replace('/', '--')}").is_dir():
        return True
    # The datasets library also keeps prepared copies in a cache of its own.
    prepared = Path(os.environ.get("HF_DATASETS_CACHE") or cache_dir().parent / "datasets")
    return kind == "datasets" and (prepared / hub_id.replace("/", "___")).is_dir()


def problem(kind: Literal["models", "datasets"], hub_id: str) -> str:
    """Explain why a repository outside the cache cannot be downloaded, and what to do; empty if no reason is known.

    Args:
        hub_id: repository as owner/name.
    """
    download = f"hf download {hub_id}{' --repo-type dataset' if kind == 'datasets' else ''}"
    if is_offline():
        return (
            f"there is no such directory, HF_HUB_OFFLINE is set, and it is not in the cache {cache_dir()}; unset "
            f"HF_HUB_OFFLINE to download it once ({download}), or write a directory"
        )
    if reason := unreachable():
        return (
            f"there is no such directory, it is not in the cache {cache_dir()}, and {endpoint()} cannot be reached "
            f"({reason}); run `{download}` where there is a network and copy the cache here, set HTTPS_PROXY if there "
            "is a proxy, or write a directory"
        )
    return ""


@cache
def unreachable() -> str:
    """Return why the hub does not answer; empty if it does. The hub is asked once per process."""
    outcome = [f"no answer within {CONNECT_SECONDS:.0f} s"]

    def ask() -> None:
        request = urllib.request.Request(endpoint(), method="HEAD")
        try:
            limits = ExchangeLimits(CONNECT_SECONDS)
            build_opener(urllib.request.HTTPRedirectHandler(), limits).open(request).close()
            outcome[0] = ""
        except HTTPError:
            outcome[0] = ""  # an HTTP error is an answer, so the hub can be reached
        except (OSError, ValueError) as error:
            outcome[0] = str(getattr(error, "reason", error))

    # Use a thread, because the deadline of an exchange does not cover the DNS look-up.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    return outcome[0]
