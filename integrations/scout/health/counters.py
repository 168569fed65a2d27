"""Error counters of the kernel: memory controllers, network cards, disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lmr.integrations.scout.health.severities import NIC_COUNTERS, NIC_ERRORS_A_LOOK
from lmr.integrations.scout.health.source import Finding, Severity, Source


def read_number(path: Path) -> int | None:
    """The whole number in a file; None when there is none."""
    try:
        return int(path.read_text().split()[0], 0)
    except (OSError, ValueError, IndexError):
        return None


class _Counters(Source):
    """Counters that only grow; growth since the last look is the news."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._before: dict[Path, int] = {}

    def _counters(self) -> Iterator[Path]:
        raise NotImplementedError

    def _judge(self, path: Path, growth: int) -> Finding | None:
        raise NotImplementedError

    def start(self) -> bool:
        self._before = self._read()
        return bool(self._before)

    def look(self) -> list[Finding]:
        now = self._read()
        grown = {path: value - self._before.get(path, value) for path, value in now.items()}
        self._before = now
        found = (self._judge(path, growth) for path, growth in sorted(grown.items()) if growth > 0)
        return [finding for finding in found if finding is not None]

    def _read(self) -> dict[Path, int]:
        values = {path: read_number(path) for path in self._counters()}
        return {path: value for path, value in values.items() if value is not None}


class Edac(_Counters):
    """Memory controllers: an uncorrected error is fatal, a corrected one a warning."""

    name = "edac"

    def __init__(self, root: Path = Path("/sys/devices/system/edac/mc")) -> None:
        super().__init__(root)

    def _counters(self) -> Iterator[Path]:
        for kind in ("ue_count", "ce_count"):
            yield from self._root.glob(f"mc*/{kind}")

    def _judge(self, path: Path, growth: int) -> Finding:
        severity: Severity = "fatal" if path.name == "ue_count" else "warning"
        metric = "memory_uncorrected" if severity == "fatal" else "memory_corrected"
        return Finding(path.parent.name, metric, severity, f"{growth} more")


class NetworkCards(_Counters):
    """Network cards: many errors at once are a warning."""

    name = "nic"

    def __init__(self, root: Path = Path("/sys/class/net")) -> None:
        super().__init__(root)

    def _counters(self) -> Iterator[Path]:
        for counter in NIC_COUNTERS:
            yield from self._root.glob(f"*/statistics/{counter}")

    def _judge(self, path: Path, growth: int) -> Finding | None:
        if growth < NIC_ERRORS_A_LOOK:
            return None
        return Finding(path.parent.parent.name, path.name, "warning", f"{growth} more")


class Disks(_Counters):
    """SCSI and SATA disks: failed requests are a warning. NVMe errors come through the kernel log."""

    name = "disk"

    def __init__(self, root: Path = Path("/sys/block")) -> None:
        super().__init__(root)

    def _counters(self) -> Iterator[Path]:
        yield from self._root.glob("*/device/ioerr_cnt")

    def _judge(self, path: Path, growth: int) -> Finding:
        return Finding(path.parent.parent.name, "disk_errors", "warning", f"{growth} more")
