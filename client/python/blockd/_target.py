"""Where a client connects to: the form of a target, and the proxy on the way. Internal. Pure functions."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Callable, Mapping, Optional
from urllib.parse import unquote, urlsplit

import grpc

from blockd.errors import ConfigurationError, misconfigured

EXPECTED = "host:port, [IPv6 address]:port or unix:/path"
LONGEST_PATH = 107  # bytes; what sockaddr_un has room for, less a zero

_NAMED = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:/\[\]@,]+))(?::(?P<port>[^:/\[\]@,]*))?")
_OTHER_SCHEMES = ("vsock:", "xds:", "google-c2p:")  # gRPC's own, left to gRPC


def check(target: str) -> None:
    """Raises ConfigurationError for a target that gRPC would dial elsewhere, or could never reach."""
    wrong = _wrong(target)
    if wrong is not None:
        raise _error(target, wrong)


def _error(target: str, wrong: str) -> ConfigurationError:
    return misconfigured("target", f"{target!r}, {wrong}" if target else wrong, EXPECTED)


def _wrong(target: str) -> Optional[str]:
    if not target:
        return "empty"
    for scheme, abstract in (("unix:", False), ("unix-abstract:", True)):
        if target.startswith(scheme):
            return _wrong_path(target[len(scheme):], abstract)
    if re.search(r"[\s\x00-\x1f\x7f]", target):
        return "with a space or a control character"
    if target.startswith(_OTHER_SCHEMES):
        return None
    for scheme, kind in (("ipv4:", ipaddress.IPv4Address), ("ipv6:", ipaddress.IPv6Address)):
        if target.startswith(scheme):
            return _wrong_list(target[len(scheme):], kind)
    if target.startswith("dns:"):
        return _wrong_address(re.sub(r"^//[^/]*/", "", target[len("dns:"):]))
    other = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", target)
    if other is not None:
        return f"with the scheme {other[1]}://"
    return _wrong_address(target)


def _wrong_list(addresses: str, kind: "Callable[[str], object]") -> Optional[str]:
    for address in addresses.split(","):
        wrong = _wrong_address(address)
        if wrong is not None:
            return wrong
        if not _parses(kind, _host(address)):
            return "with what is no address of its kind"
    return None


def _wrong_address(address: str) -> Optional[str]:
    match = _NAMED.fullmatch(address)
    if match is None:
        if address.count(":") > 1 and _parses(ipaddress.IPv6Address, address.rpartition(":")[0]):
            return "with an IPv6 address that is not in brackets"
        return "without a host" if address.startswith(":") else "malformed"
    if match["v6"] is not None and not _parses(ipaddress.IPv6Address, match["v6"]):
        return "with brackets around what is no IPv6 address"
    port = match["port"]
    if not port:
        return "without a port"
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        return "with a port that is not 1 to 65535"
    return None


def _parses(kind: "Callable[[str], object]", text: str) -> bool:
    try:
        kind(re.sub(r"%.*", "", text))  # less its zone
    except ValueError:
        return False
    return True


def _wrong_path(path: str, abstract: bool) -> Optional[str]:
    if path.startswith("//") and not abstract:
        path = path[2:]
        if not path.startswith("/"):
            return "with a host before its path"
    if not path:
        return "without a path"
    if re.search(r"[#?\x00]", path):
        return "whose path has a #, ? or zero, which ends it: write %23 or %3F"
    size = len(unquote(path).encode("utf-8", "surrogateescape"))
    if size > LONGEST_PATH:
        return f"with a path of {size} bytes, and {LONGEST_PATH} at most"
    return None


def stays_on_this_host(target: str) -> bool:
    """Whether what is sent there in plain text leaves this machine."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    for scheme in ("dns:///", "dns:", "ipv4:", "ipv6:"):
        if target.startswith(scheme):
            target = target[len(scheme):]
            break
    match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:/\[\],]*))(?::\d*)?", target)
    if match is None:
        return False
    host = match[1] if match[1] is not None else match[2]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def proxy_note(target: str, environment: "Mapping[str, str]" = os.environ) -> str:
    """Which HTTP proxy calls to the target go through, for their errors; empty: none.

    As gRPC reads the environment. What a URL has before its host, a user and a password, is left out.
    """
    if stays_on_this_host(target) or target.startswith("vsock:"):
        return ""
    name = next((one for one in ("grpc_proxy", "https_proxy", "http_proxy") if one in environment), None)
    if name is None:
        return ""
    try:
        url = urlsplit(environment[name])
    except ValueError:
        return ""
    *_, proxy = url.netloc.split("@")
    if not environment[name].startswith("http:") or not proxy or url.netloc.count("@") > 1:
        return ""
    if _exempt(_host(target), environment.get("no_grpc_proxy", environment.get("no_proxy", ""))):
        return ""
    return f" (through the proxy {proxy} that ${name} names; $no_grpc_proxy exempts hosts)"


def _host(target: str) -> str:
    address = re.sub(r"^(?:dns|ipv4|ipv6|xds|google-c2p):(?://[^/]*/)?", "", target)
    match = _NAMED.match(address)
    if match is None:
        return ""
    return str(match["v6"] if match["v6"] is not None else match["host"])


def _exempt(host: str, entries: str) -> bool:
    """gRPC compares the ends of names. Later versions also know subnets, spaces and large letters."""
    for entry in filter(None, entries.split(",")):
        if host and host.endswith(entry):
            return True
        if _version() < (1, 60) or not host:
            continue
        entry = entry.strip()
        if host.lower().endswith(entry.lower()):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False


def _version() -> "tuple[int, ...]":
    return tuple(map(int, re.findall(r"\d+", grpc.__version__)[:2]))
