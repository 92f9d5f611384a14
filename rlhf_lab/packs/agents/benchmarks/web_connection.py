"""HTTP connections to addresses that a model chose: only to public hosts, and with one deadline for everything.

A host name is resolved once, its addresses are checked, and the connection uses one of these addresses. This prevents
DNS rebinding, where a second look-up of the same name returns a private address.
"""

from __future__ import annotations

import socket
import urllib.request
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from rlhf_lab.core import http_client
from rlhf_lab.core.http_client import ExchangeLimits
from rlhf_lab.core.tools import ToolError

UNICAST_V6 = IPv6Network("2000::/3")
"""IPv6 addresses that are assigned to hosts of the internet. It excludes NAT64 (64:ff9b::/96, 64:ff9b:1::/48),
IPv4-mapped and -compatible (::/8), local, site-local, multicast and discard addresses."""
NOT_PUBLIC = (
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
    IPv6Network("2001::/23"),  # IETF protocols, including Teredo (2001::/32), which embeds an IPv4 address
    IPv6Network("2002::/16"),  # 6to4, which embeds an IPv4 address
    IPv6Network("3fff::/20"),  # documentation
)
"""Networks that some versions of `ipaddress` consider global although they have no hosts of the public web."""


def is_public(address: str) -> bool:
    """Return True if an IP address (as text) belongs to a single host of the public internet."""
    without_zone = address.partition("%")[0]
    parsed: IPv4Address | IPv6Address = ip_address(without_zone)
    if isinstance(parsed, IPv6Address) and parsed not in UNICAST_V6:
        return False
    is_single_host = parsed.is_global and not parsed.is_multicast and not parsed.is_reserved
    refused = [network for network in NOT_PUBLIC if network.version == parsed.version]
    return is_single_host and not any(parsed in network for network in refused)


def resolve(host: str, port: int, *, allow_private: bool) -> list[Any]:
    """Return the addresses of a host in the form of `socket.getaddrinfo`.

    Raises:
        ToolError: the host does not exist, or one of its addresses is not public.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"error: {host} cannot be reached: there is no such host") from error
    hosts = [str(socket_address[0]) for *_, socket_address in addresses]
    # All of them, because the connection may use any: a public name may also point to a private address.
    if not allow_private and not all(map(is_public, hosts)):
        raise ToolError(f"error: {host} is not on the public web")
    return addresses


def build_opener(
    redirects: urllib.request.HTTPRedirectHandler, limits: ExchangeLimits, *, allow_private: bool
) -> urllib.request.OpenerDirector:
    """Return a urllib opener for one http or https request, through the environment's proxy if there is one.

    The time limit in `limits` starts with this call.

    Args:
        redirects: decides which redirects are followed.
        limits: deadline and maximum size.
        allow_private: True to allow hosts of this machine and its network.
    """

    def resolve_checked(host: str, port: int, is_proxy: bool) -> list[Any]:
        # The user's environment names the proxy, so it is trusted and may be a private host.
        return resolve(host, port, allow_private=allow_private or is_proxy)

    return http_client.build_opener(redirects, limits, resolve=resolve_checked)
