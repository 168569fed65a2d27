"""A network namespace for one node, whose cable can be pulled. Linux, root and the `ip` command are needed.

    host:  lmrXXXXXX 10.219.N.1/30  ---- veth ----  10.219.N.2/30 lmrXXXXXX  :namespace

The node reaches the host by its own veth only. With the interface down every packet is lost in both directions, as
with a pulled cable: nobody is told.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lmr.integrations.faults.errors import NotPossibleHere


@dataclass(frozen=True)
class Namespace:
    """One namespace of one run.

    Args:
        name: of the namespace and of both ends of its cable.
        number: third part of its addresses.
    """

    name: str
    number: int

    @classmethod
    def of(cls, marks: Path, node: str) -> Namespace:
        """The namespace of a node: the same for everybody who asks."""
        digest = hashlib.sha256(f"{marks}\0{node}".encode()).digest()
        return cls(f"lmr{digest[:4].hex()}", digest[4])

    @property
    def host_address(self) -> str:
        """Where the node finds the host."""
        return f"10.219.{self.number}.1"

    @property
    def node_address(self) -> str:
        """Where the host finds the node."""
        return f"10.219.{self.number}.2"

    def open(self) -> bool:
        """Make it; False when somebody has made it already.

        Raises:
            NotPossibleHere: no root, no `ip`, or the kernel refuses.
        """
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise NotPossibleHere("network_partition needs root and the `ip` command (iproute2)")
        if Path("/run/netns", self.name).exists():
            return False
        inside = f"{self.name}n"
        _ip("netns", "add", self.name)
        _ip("link", "add", self.name, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", self.name, "name", self.name)
        _ip("addr", "add", f"{self.host_address}/30", "dev", self.name)
        _ip("link", "set", self.name, "up")
        _ip("-n", self.name, "addr", "add", f"{self.node_address}/30", "dev", self.name)
        _ip("-n", self.name, "link", "set", self.name, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("-n", self.name, "route", "add", "default", "via", self.host_address)
        return True

    def command(self, arguments: list[str]) -> list[str]:
        """The same command, inside."""
        return ["ip", "netns", "exec", self.name, *arguments]

    def cut(self) -> None:
        """Pull the cable."""
        _ip("-n", self.name, "link", "set", self.name, "down")

    def mend(self) -> None:
        """Put the cable back; the route went with it."""
        _ip("-n", self.name, "link", "set", self.name, "up")
        _ip("-n", self.name, "route", "replace", "default", "via", self.host_address)

    def close(self) -> None:
        """Take it away; its processes keep what they have of it until they end."""
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self.name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotPossibleHere(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
