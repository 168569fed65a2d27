"""Kernel log: Xid messages of the NVIDIA driver, machine checks, memory failures, disks and network cards."""

from __future__ import annotations

import os
import re

from typing_extensions import override

from lmr.integrations.scout.health.severities import KERNEL_LINES, XID
from lmr.integrations.scout.health.source import Finding, Severity, Source

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
_LINES = tuple((re.compile(pattern), metric, severity) for pattern, metric, severity in KERNEL_LINES)
_RECORDS_A_LOOK = 1_000
_RECORD_BYTES = 8192


class KernelLog(Source):
    """Reads `/dev/kmsg` from its present end on."""

    name = "kernel_log"

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._path = path
        self._fd: int | None = None

    @override
    def start(self) -> bool:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()
            return False
        return True

    @override
    def look(self) -> list[Finding]:
        found: list[Finding] = []
        for _ in range(_RECORDS_A_LOOK):
            try:
                record = os.read(self._fd, _RECORD_BYTES) if self._fd is not None else b""
            except BrokenPipeError:  # the kernel has overwritten what was not read yet; the next read goes on
                continue
            except OSError:
                break
            if not record:
                break
            for line in record.decode(errors="replace").splitlines():
                found += judge(line)
        return found

    @override
    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def judge(line: str) -> list[Finding]:
    """What one line of the kernel log says about a device."""
    xid = _XID.search(line)
    if xid is not None:
        number = int(xid[2])
        severity, meaning = XID.get(number, ("warning", "not in the table"))
        return [Finding(f"gpu:{xid[1]}", f"xid_{number}", severity, meaning)]
    return [_of(line, metric, severity) for pattern, metric, severity in _LINES if pattern.search(line)][:1]


def _of(line: str, metric: str, severity: Severity) -> Finding:
    device = re.search(r"\bdev (\w+)|NETDEV WATCHDOG: (\w+)", line)
    name = next((part for part in device.groups() if part), "machine") if device is not None else "machine"
    return Finding(name, metric, severity, line[-200:])
