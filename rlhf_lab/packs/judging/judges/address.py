"""Address of a service."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from rlhf_lab.packs.judging.judges.backends.settings import Service


def url_of(settings: Service) -> str:
    """Return the URL of a service: the configured one, or the vendor's own."""
    return settings.base_url or settings.default_url


def is_private(settings: Service) -> bool:
    """Return True if the service is on this machine or in its network: then it is free and needs no key."""
    # loopback and private addresses, and names that resolve only locally
    host = urlsplit(url_of(settings)).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or "." not in host or host.endswith((".local", ".internal", ".localhost"))
    return address.is_private or address.is_loopback
