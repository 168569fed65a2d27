"""Health sources: one contract for all, and what each makes of a machine's files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmr.engine.events import DeviceUnhealthy, EventData
from lmr.integrations.scout.detector_policy import HealthPolicy
from lmr.integrations.scout.health.counters import Disks, Edac, NetworkCards
from lmr.integrations.scout.health.kernel_log import KernelLog, judge
from lmr.integrations.scout.health.memory import FreeMemory, OutOfMemoryKills
from lmr.integrations.scout.health.nvml import Nvml
from lmr.integrations.scout.health.severities import XID
from lmr.integrations.scout.health.source import Finding, Source
from lmr.integrations.scout.health.watch import HealthWatch, sources


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class SickNvml:
    """One device; `errors` and `lost` are what is wrong with it."""

    class NVMLError(Exception):
        value = 15

    NVML_ERROR_GPU_IS_LOST = 15
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 1

    def __init__(self) -> None:
        self.errors, self.lost = 4, False
        self.nvmlInit = self.nvmlShutdown = lambda: None
        self.nvmlDeviceGetCount = lambda: 1
        self.nvmlDeviceGetHandleByIndex = lambda number: number
        self.nvmlDeviceGetTotalEccErrors = lambda *_: self.errors
        self.nvmlDeviceGetRemappedRows = lambda _: (0, 0, 0, 0)

    def nvmlDeviceGetUUID(self, _handle: Any) -> str:
        if self.lost:
            raise self.NVMLError
        return "GPU-1"


class Rig:
    """A source on a made-up machine, and what makes it sick."""

    def __init__(self, source: Source, sicken: Any, finding: Finding) -> None:
        self.source, self.sicken, self.finding = source, sicken, finding


def rigs(root: Path) -> dict[str, Rig]:
    ue = write(root / "mc/mc0/ue_count", "2\n")
    rx = write(root / "net/eth0/statistics/rx_errors", "10\n")
    io = write(root / "block/sda/device/ioerr_cnt", "0x3\n")
    info = write(root / "meminfo", "MemTotal: 1000 kB\nMemAvailable: 500 kB\n")
    write(root / "cgroup", "0::/job\n")
    events = write(root / "fs/job/memory.events", "oom 0\noom_kill 1\n")
    nvml = SickNvml()
    log = write(root / "kmsg", "old\n")
    return {
        "edac": Rig(Edac(root / "mc"), lambda: ue.write_text("3"), Finding("mc0", "memory_uncorrected", "fatal")),
        "nic": Rig(NetworkCards(root / "net"), lambda: rx.write_text("500"), Finding("eth0", "rx_errors", "warning")),
        "disk": Rig(Disks(root / "block"), lambda: io.write_text("0x9"), Finding("sda", "disk_errors", "warning")),
        "memory": Rig(
            FreeMemory(2, info),
            lambda: info.write_text("MemTotal: 1000 kB\nMemAvailable: 10 kB\n"),
            Finding("memory", "available_low", "warning"),
        ),
        "cgroup_oom": Rig(
            OutOfMemoryKills(root / "fs", root / "cgroup"),
            lambda: events.write_text("oom_kill 2\n"),
            Finding("memory", "oom_kill", "warning"),
        ),
        "nvml": Rig(Nvml(nvml), lambda: setattr(nvml, "errors", 5), Finding("gpu:0", "ecc_uncorrected", "fatal")),
        "kernel_log": Rig(
            KernelLog(str(log)),
            lambda: log.write_text("old\n3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus\n"),
            Finding("gpu:0000:3b:00", "xid_79", "fatal"),
        ),
    }


NAMES = ("edac", "nic", "disk", "memory", "cgroup_oom", "nvml", "kernel_log")


@pytest.mark.parametrize("name", NAMES)
def test_a_source_says_what_happens_after_its_start_and_nothing_else(name: str, tmp_path: Path) -> None:
    rig = rigs(tmp_path)[name]
    assert rig.source.name == name
    assert rig.source.start()
    assert rig.source.look() == []
    rig.sicken()
    assert [f.key for f in rig.source.look()] == [rig.finding.key]
    rig.source.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_source_without_its_device_is_not_available_and_does_not_raise(name: str, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    broken = SimpleNamespace(nvmlInit=lambda: (_ for _ in ()).throw(OSError("no driver")))
    absent: dict[str, Source] = {
        "edac": Edac(nowhere),
        "nic": NetworkCards(nowhere),
        "disk": Disks(nowhere),
        "memory": FreeMemory(2, nowhere),
        "cgroup_oom": OutOfMemoryKills(nowhere, nowhere),
        "nvml": Nvml(broken),
        "kernel_log": KernelLog(str(nowhere)),
    }
    source = absent[name]
    assert source.start() is False
    source.close()


def test_every_built_in_source_is_in_the_contract() -> None:
    assert {source.name for source in sources(HealthPolicy())} >= set(NAMES)
    assert "nvml" not in {source.name for source in sources(HealthPolicy(disabled_sources=("nvml",)))}


def test_a_lost_device_is_fatal() -> None:
    nvml = SickNvml()
    source = Nvml(nvml)
    source.start()
    nvml.lost = True
    assert [f.key for f in source.look()] == [("gpu:0", "device_lost", "fatal")]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 48, DBE", ("gpu:0000:3b:00", "xid_48", "fatal")),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000001", ("gpu:0000:03:00", "xid_31", "warning")),
        ("NVRM: Xid (PCI:0000:3b:00): 999, ?", ("gpu:0000:3b:00", "xid_999", "warning")),
        ("I/O error, dev sdb, sector 12", ("sdb", "io_error", "warning")),
        ("Memory failure: 0x12ab: recovery action", ("machine", "memory_failure", "fatal")),
        ("eth0: link becomes ready", None),
    ],
)
def test_a_kernel_line_is_judged_by_the_table(line: str, key: tuple[str, str, str] | None) -> None:
    assert [f.key for f in judge(line)] == ([] if key is None else [key])


def test_what_an_application_can_cause_is_never_fatal() -> None:
    assert all(XID[number][0] == "warning" for number in (13, 31, 43, 45))


class Scripted(Source):
    """Says what it is told to, in order."""

    name = "scripted"

    def __init__(self, *looks: Any) -> None:
        self._looks = list(looks)

    def start(self) -> bool:
        return True

    def look(self) -> list[Finding]:
        said = self._looks.pop(0)
        if isinstance(said, Exception):
            raise said
        return list(said)


HOT = Finding("gpu:0", "hot", "warning")


def watch(*looks: Any) -> HealthWatch:
    published: list[EventData] = []
    made = HealthWatch("node-1", HealthPolicy(), published.append, [Scripted(*looks)])
    made.start()
    return made


def test_a_standing_finding_is_news_once_and_again_when_it_comes_back() -> None:
    made = watch([HOT], [HOT], [], [HOT])
    fact = DeviceUnhealthy(node="node-1", device="gpu:0", metric="hot", severity="warning")
    assert [made.look() for _ in range(4)] == [[fact], [], [], [fact]]


def test_a_source_that_raises_is_left_out_and_the_others_go_on() -> None:
    published: list[EventData] = []
    made = HealthWatch("n", HealthPolicy(), published.append, [Scripted(OSError("gone")), Scripted([HOT], [HOT])])
    made.start()
    assert [fact.metric for fact in made.look()] == ["hot"]
    assert made.look() == []


PLUGIN = """
from lmr.integrations.scout.health.source import Finding, Source

class Fans(Source):
    name = "fans"
    speed = 100
    def start(self):
        return True
    def look(self):
        return [Finding("fan0", "stopped", "warning")] if self.speed == 0 else []

class Unfinished(Source):
    name = "unfinished"

def broken():
    raise OSError("no such device")
"""


def test_an_installed_source_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves it: a module and its dist-info. What is no source, or fails to load, is said and left out."""
    write(tmp_path / "site/our_fans.py", PLUGIN)
    write(tmp_path / "site/our_fans-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: our-fans\nVersion: 1.0\n")
    write(
        tmp_path / "site/our_fans-1.0.dist-info/entry_points.txt",
        "[lmr.health_sources]\nfans = our_fans:Fans\nhalf = our_fans:Unfinished\nbroken = our_fans:broken\n"
        "absent = our_fans:Missing\nlist = builtins:list\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = {source.name: source for source in sources(HealthPolicy())}
    assert found.keys() == {*NAMES, "fans"}
    fans: Any = found["fans"]
    published: list[EventData] = []
    made = HealthWatch("node-1", HealthPolicy(), published.append, [fans])
    assert made.start() == ("fans",)
    assert made.look() == []
    fans.speed = 0
    assert made.look() == [DeviceUnhealthy(node="node-1", device="fan0", metric="stopped", severity="warning")]
    assert "fans" not in {source.name for source in sources(HealthPolicy(disabled_sources=("fans",)))}
