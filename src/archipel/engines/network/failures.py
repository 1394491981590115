# SPDX-License-Identifier: Apache-2.0
"""Why there is no connection, and what to do: sentences in place of gRPC's own words."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature

_CONNECTING = re.compile("failed to connect to all addresses|errors? resolving|DNS resolution")
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # gRPC takes the first that is set
_EXCEPT = ("no_grpc_proxy", "no_proxy")
_LOOK = 5.0  # seconds to fetch a certificate, for its dates


@dataclass(frozen=True)
class Goal:
    """Whom somebody wants to reach, and with what."""

    address: str
    name: str
    own: bytes  # certificate, PEM
    authority: bytes

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def who(self) -> str:
        return "the coordinator" if self.name == "coordinator" else self.name

    @property
    def proxy(self) -> str:
        """The variable and the proxy that gRPC goes through, without its password; or nothing."""
        spared = next((os.environ[each] for each in _EXCEPT if os.environ.get(each)), "")
        if any(self.host.endswith(each.strip()) for each in spared.split(",") if each.strip()):
            return ""
        variable = next((each for each in _PROXIES if os.environ.get(each)), "")
        if not variable:
            return ""
        parts = urlsplit(os.environ[variable])
        return f"{variable} = {parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def explain(details: str, goal: Goal) -> str:
    """Say why a connection was not made; words that nobody knows here are left as they are."""
    if not _CONNECTING.match(details):
        return f"no connection: {goal.who} cut it off ({details.rstrip('.')})."
    for pattern, say in _SENTENCES.items():
        if found := re.search(pattern, details):
            return f"no connection: {say(goal, found)}"
    for pattern, when in _DATES.items():
        if re.search(pattern, details):
            return f"no connection: {await _dates(goal, when)}"
    return f"no connection: {details.rstrip('.')}."


# -- certificates ----------------------------------------------------------------------------------


async def _dates(goal: Goal, when: str) -> str:
    """A certificate that does not hold now: whose, its dates, and this machine's clock."""
    now = datetime.now(UTC)
    whose, found = "the federation's authority", _read(goal.authority)
    certificate: x509.Certificate | None = found
    if _holds(found, now):
        whose, certificate = f"{goal.who} at {goal.address}", await _shown(goal)
    dates = "" if certificate is None else f", it holds from {_span(certificate)}"
    return (
        f"the certificate of {whose} {when}{dates}, and this machine's clock says {_time(now)}; "
        f"set the clock if that is wrong, else ask {goal.who}'s operator for a new certificate."
    )


async def _shown(goal: Goal) -> x509.Certificate | None:
    """The certificate that is shown at an address, believed in nothing; none through a proxy."""
    if goal.proxy:
        return None
    port = int(goal.address.rpartition(":")[2])
    with suppress(OSError, ValueError):
        fetch = asyncio.to_thread(ssl.get_server_certificate, (goal.host, port), timeout=_LOOK)
        return _read((await fetch).encode())
    return None


def _own(goal: Goal, _: re.Match[str]) -> str:
    """Nothing came after the handshake: the other side does not take the certificate it saw."""
    now = datetime.now(UTC)
    own, authority = _read(goal.own), _read(goal.authority)
    if not _holds(own, now):
        return (
            f"this machine's own certificate holds from {_span(own)}, and its clock says "
            f"{_time(now)}; set the clock if that is wrong, else join again with a new token."
        )
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return (
            "this machine's own certificate is of another authority than the federation's; join "
            "again with a new token."
        )
    return (
        f"{goal.who} at {goal.address} hangs up as soon as it sees this machine's certificate, "
        f"which holds from {_span(own)}; ask its operator whether its clock is right and whether "
        f"it is still the same federation{_through(goal)}."
    )


def _read(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def _holds(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def _span(certificate: x509.Certificate) -> str:
    return f"{_time(certificate.not_valid_before_utc)} to {_time(certificate.not_valid_after_utc)}"


def _time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


# -- the way there ---------------------------------------------------------------------------------


def _through(goal: Goal) -> str:
    """The proxy that is on the way, or the setting that was perhaps meant to be one."""
    if goal.proxy:
        return f"; the way leads through a proxy, {goal.proxy}"
    if os.environ.get("HTTPS_PROXY"):
        return "; HTTPS_PROXY is not read, https_proxy in small letters is"
    return ""


def _proxy_says(goal: Goal, found: re.Match[str]) -> str:
    hints = {"407": "give it a user and a password, http://user:password@host:port"}
    hint = hints.get(found[1], "ask for the address to be let through, or name it in no_proxy")
    return f"the proxy, {goal.proxy}, answers {found[1]} to CONNECT {goal.address}; {hint}."


def _not_found(goal: Goal, _: re.Match[str]) -> str:
    if goal.proxy:
        return f"the name of the proxy is not known here, {goal.proxy}; correct it."
    return (
        f"the name {goal.host} is not known here; check the address, this machine's DNS, and "
        f"whether a proxy is needed (https_proxy){_through(goal)}."
    )


def _refused(goal: Goal, _: re.Match[str]) -> str:
    if goal.proxy:
        return f"the proxy refuses, {goal.proxy}; correct it, or name {goal.host} in no_proxy."
    return (
        f"nobody listens at {goal.address}; check the address, whether {goal.who} is up, and "
        f"whether a firewall refuses{_through(goal)}."
    )


def _plainly(text: str) -> Callable[[Goal, re.Match[str]], str]:
    """A sentence with address and name in it."""

    def say(goal: Goal, _: re.Match[str]) -> str:
        return text.format(address=goal.address, name=goal.who) + f"{_through(goal)}."

    return say


_SENTENCES: dict[str, Callable[[Goal, re.Match[str]], str]] = {
    r"proxy returned response code (\d+)": _proxy_says,
    r"resolving|DNS resolution|address lookup failed": _not_found,
    r"[Cc]onnection refused": _refused,
    r"unable to get local issuer|self.signed|unable to verify": _plainly(
        "who answers at {address} is not of this federation, the certificate is another "
        "authority's; check the address, and where a firewall opens TLS have it spare this one"
    ),
    r"certificate purpose|Hostname Verification|Peer name": _plainly(
        "who answers at {address} is of this federation but not {name}; check the address"
    ),
    r"WRONG_VERSION_NUMBER|HTTP_REQUEST|Trying to connect an http1": _plainly(
        "{address} does not speak TLS; check the port"
    ),
    r"ALPN": _plainly(
        "{address} speaks TLS and is not {name}; check the port, and where a firewall opens TLS "
        "have it spare this address"
    ),
    r"[Nn]etwork is unreachable|[Nn]o route to host": _plainly(
        "there is no way from here to {address}; check this machine's network"
    ),
    r"Endpoint closing|[Tt]imed? ?out|[Tt]imeout|SETTINGS|FD [Ss]hutdown": _plainly(
        "{address} does not answer in time; check the address, and whether a firewall swallows "
        "what is sent"
    ),
    r"reset by peer|Handshake read failed": _plainly(
        "{address} hangs up before it shows a certificate; check the port, and whether a firewall "
        "cuts in"
    ),
    r"Socket closed|ALERT": _own,
}
_DATES = {
    r"certificate is not yet valid": "does not hold yet",
    r"certificate has expired": "does not hold any more",
}
