"""Network namespaces that stand for machines: each has its own address, and any of them can be cut off, silently.

Two switches (bridges) are joined by one cable, so that a side can be cut off as a whole. Needs root and `ip`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
from pathlib import Path

from typing_extensions import Self

_networks = itertools.count()


def cannot() -> str | None:
    """Why namespaces cannot be made here; None when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the ip command is not installed (iproute2)"
    probe = f"lmrprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "this container may not make network namespaces"
    _ip("netns", "del", probe)
    return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Machines:
    """Two switches and the machines plugged into them; used as a context."""

    def __init__(self) -> None:
        number = os.getpid() * 7 + next(_networks)
        self._tag = f"lm{number % 100_000:05d}"
        self._subnet = f"10.{100 + number // 250 % 100}.{number % 250}"
        self._count = 0
        self._machines: dict[str, str] = {}
        self.host = f"{self._subnet}.250"
        """This process's own address on switch `a`: what serves everybody (a database) listens here."""

    def __enter__(self) -> Self:
        for side in "ab":
            _ip("link", "add", f"{self._tag}{side}", "type", "bridge")
            _ip("link", "set", f"{self._tag}{side}", "up")
        _ip("link", "add", f"{self._tag}ca", "type", "veth", "peer", "name", f"{self._tag}cb")
        for side in "ab":
            _ip("link", "set", f"{self._tag}c{side}", "master", f"{self._tag}{side}", "up")
        _ip("addr", "add", f"{self.host}/24", "dev", f"{self._tag}a")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._machines:
            subprocess.run(["ip", "netns", "del", self._space(name)], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / self._space(name), ignore_errors=True)
        for device in ("ca", "a", "b"):
            subprocess.run(["ip", "link", "del", f"{self._tag}{device}"], check=False, capture_output=True)

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def add(self, name: str, side: str = "a") -> str:
        """A new machine on a switch; its address."""
        self._count += 1
        space, cable, address = self._space(name), f"{self._tag}m{self._count}", f"{self._subnet}.{self._count}"
        self._machines[name] = cable
        _ip("netns", "add", space)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", cable, "master", f"{self._tag}{side}", "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")
        hosts = Path("/etc/netns") / space / "hosts"  # its own name is its own address there
        hosts.parent.mkdir(parents=True)
        hosts.write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
        return address

    def inside(self, name: str) -> list[str]:
        """What goes before a command that is to run on the machine."""
        return ["ip", "netns", "exec", self._space(name)]

    def cut_off(self, name: str) -> None:
        """The machine's cable is out: nothing goes in or out, and nobody is told."""
        _ip("link", "set", self._machines[name], "down")

    def reconnect(self, name: str) -> None:
        """The cable is in again."""
        _ip("link", "set", self._machines[name], "up")

    def slow(self, name: str) -> bool:
        """What the machine receives goes through 16 Mbit/s and queues up for half a second; False: not here."""
        limit = ("tbf", "rate", "16mbit", "burst", "32kb", "latency", "500ms")
        command = ["tc", "qdisc", "add", "dev", self._machines[name], "root", *limit]
        return (
            shutil.which("tc") is not None and not subprocess.run(command, capture_output=True, check=False).returncode
        )

    def quick(self, name: str) -> None:
        """The cable is as before."""
        subprocess.run(["tc", "qdisc", "del", "dev", self._machines[name], "root"], check=True, capture_output=True)

    def divide(self) -> None:
        """The cable between the switches is out."""
        _ip("link", "set", f"{self._tag}ca", "down")

    def unite(self) -> None:
        """The switches see each other again."""
        _ip("link", "set", f"{self._tag}ca", "up")
