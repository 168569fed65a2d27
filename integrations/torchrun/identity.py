"""Who this agent is: node, incarnation, address, fingerprint."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmr.integrations.torchrun.errors import ConfigInvalid

NODE_ID_MAX_CHARS = 128


@dataclass(frozen=True)
class Identity:
    """One life of one agent on one machine."""

    node: str
    incarnation: str
    failure_domain: str | None
    fingerprint: str


def identify(failure_domain: str | None, environ: Mapping[str, str] = os.environ) -> Identity:
    """This agent's identity; every call is a new incarnation.

    Raises:
        ConfigInvalid: `LM_RESILIENCY_NODE_ID` is not usable as a name.
    """
    return Identity(node_id(environ), uuid.uuid4().hex[:12], failure_domain, fingerprint())


def node_id(environ: Mapping[str, str] = os.environ) -> str:
    """The machine's name in the run: `LM_RESILIENCY_NODE_ID`, or a hash of the machine id.

    Raises:
        ConfigInvalid: the variable holds something else than letters, digits and ``._-``.
    """
    given = environ.get("LM_RESILIENCY_NODE_ID")
    if given is None:
        return f"node-{hashlib.sha256(_machine_id()).hexdigest()[:12]}"
    if not 0 < len(given) <= NODE_ID_MAX_CHARS or not all(c.isascii() and (c.isalnum() or c in "._-") for c in given):
        raise ConfigInvalid(
            f"LM_RESILIENCY_NODE_ID is {given!r}; allowed: 1 to {NODE_ID_MAX_CHARS} letters, digits, '.', '_', '-'"
        )
    return given


def _machine_id() -> bytes:
    for name in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(name).read_bytes().strip()
        except OSError:
            continue
        if text:
            return text
    return socket.getfqdn().encode() + uuid.getnode().to_bytes(8, "big")


def fingerprint() -> str:
    """A digest of the versions that nodes of one run should share."""
    import torch

    parts = (platform.machine(), platform.python_version(), torch.__version__, str(torch.version.cuda))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def address_towards(host: str, port: int) -> str:
    """The local address that packets to `host:port` leave from; what peers can reach this node by."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.getfqdn()
