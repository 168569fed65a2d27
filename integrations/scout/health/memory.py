"""Memory of the machine and of this job's control group."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import override

from lmr.integrations.scout.health.source import Finding, Source


class FreeMemory(Source):
    """Warns when little memory is available, again only after it had recovered.

    Args:
        floor_pct: percent of all memory.
        path: the kernel's account.
    """

    name = "memory"

    def __init__(self, floor_pct: int = 2, path: Path = Path("/proc/meminfo")) -> None:
        self._floor_pct = floor_pct
        self._path = path

    @override
    def start(self) -> bool:
        return self._available_pct() is not None

    @override
    def look(self) -> list[Finding]:
        available = self._available_pct()
        if available is None or available >= self._floor_pct:
            return []
        return [Finding("memory", "available_low", "warning", f"{available:.1f} percent available")]

    def _available_pct(self) -> float | None:
        try:
            lines = dict(line.split(":", 1) for line in self._path.read_text().splitlines() if ":" in line)
            return 100 * int(lines["MemAvailable"].split()[0]) / int(lines["MemTotal"].split()[0])
        except (OSError, KeyError, ValueError, ZeroDivisionError):
            return None


class OutOfMemoryKills(Source):
    """Processes the kernel killed in this process's control group for lack of memory (control groups 2 and 1).

    A warning: the killed rank is a fact of its own, this says why.
    """

    name = "cgroup_oom"

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> None:
        self._root = root
        self._own = own
        self._file: Path | None = None
        self._kills = 0

    @override
    def start(self) -> bool:
        self._file = next((path for path in self._candidates() if _kills(path) is not None), None)
        if self._file is None:
            return False
        self._kills = _kills(self._file) or 0
        return True

    @override
    def look(self) -> list[Finding]:
        kills = _kills(self._file) if self._file is not None else None
        if kills is None or kills <= self._kills:
            return []
        more, self._kills = kills - self._kills, kills
        return [Finding("memory", "oom_kill", "warning", f"{more} more processes were killed")]

    def _candidates(self) -> list[Path]:
        try:
            lines = self._own.read_text().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            _, controllers, place = line.split(":", 2)
            inside = place.lstrip("/")
            if controllers == "":
                found.append(self._root / inside / "memory.events")
            elif "memory" in controllers.split(","):
                found.append(self._root / "memory" / inside / "memory.oom_control")
        return found


def _kills(path: Path) -> int | None:
    try:
        for line in path.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None
