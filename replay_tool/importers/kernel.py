"""Kernel messages: NVIDIA Xid lines, machine checks and EDAC memory errors, from dmesg, journalctl or syslog."""

from __future__ import annotations

import re
from pathlib import Path

from lmr.engine.events import DeviceUnhealthy
from lmr.replay_tool.importers.sighting import Gleaned, Job, Sighting
from lmr.replay_tool.importers.stamps import stamp_ms

_XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9A-Fa-f:.]+)\): (?P<code>\d+)")
_MCE = re.compile(
    r"\[Hardware Error\]: CPU[: ](?P<cpu>\d+)[: ].*?(?P<status>MC\d+_STATUS\[[^\]]*\]|Bank \d+: [0-9a-f]{8,16})"
)
_EDAC = re.compile(r"EDAC (?P<mc>MC\d+): (?P<count>\d+) (?P<kind>[UC]E) ")
_HOST = re.compile(r"^(?:<\d+>)?(?:\S+ +\d{1,2} [\d:]+|\d{4}-\S+) (?P<host>[A-Za-z0-9][\w.-]*) kernel:")

FATAL_XIDS = {48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143}
"""Codes after which the GPU cannot serve until it is reset or replaced (NVIDIA's Xid catalogue)."""
APPLICATION_XIDS = {13, 31, 43, 45, 68, 69}
"""Codes that the program itself causes: no word about the device."""


def recognizes(head: bytes) -> bool:
    """True for text with an Xid, a machine check or an EDAC error."""
    return b"NVRM: Xid" in head or b"[Hardware Error]" in head or re.search(rb"EDAC MC\d+: \d+ [UC]E", head) is not None


def read(path: Path, job: Job) -> Gleaned:
    """Unhealthy devices that the messages tell; repeated lines about one device and fault count once."""
    gleaned = Gleaned()
    seen: set[tuple[str, str, str]] = set()
    silent = 0
    own = job.node_in(path.parts) or (job.nodes[0] if len(job.nodes) == 1 else None)
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            found = _fault(line)
            if found is None:
                continue
            device, metric, severity = found
            host = _HOST.match(line)
            node = host["host"] if host else own
            if severity == "application":
                silent += 1
            elif node is None:
                gleaned.notes.append(f"{path}:{number}: {metric} on a host that cannot be told")
            elif (node, device, metric) not in seen:
                seen.add((node, device, metric))
                data = DeviceUnhealthy(node=node, device=device, metric=metric, severity=severity)  # type: ignore[arg-type]
                gleaned.sightings.append(Sighting(data, stamp_ms(line, job.year), node, f"{path}:{number}"))
    if silent:
        gleaned.notes.append(f"{path}: {silent} Xid lines that programs cause were left out")
    return gleaned


def _fault(line: str) -> tuple[str, str, str] | None:
    xid = _XID.search(line)
    if xid:
        code = int(xid["code"])
        severity = "fatal" if code in FATAL_XIDS else "application" if code in APPLICATION_XIDS else "warning"
        return f"gpu:{xid['bus'].lower()}", f"xid_{code}", severity
    edac = _EDAC.search(line)
    if edac:
        severity = "fatal" if edac["kind"] == "UE" else "warning"
        return f"memory:{edac['mc'].lower()}", f"edac_{edac['kind'].lower()}", severity
    mce = _MCE.search(line)
    if mce:
        return f"cpu:{mce['cpu']}", "machine_check", "fatal" if _uncorrected(mce["status"]) else "warning"
    return None


def _uncorrected(status: str) -> bool:
    """Bit 61 (UC) of an MCi_STATUS word, or the `UE` / missing `CE` of a decoded one."""
    if status.startswith("Bank"):
        return bool(int(status.rpartition(" ")[2], 16) >> 61 & 1)
    flags = status.partition("[")[2].rstrip("]").split("|")
    return "UE" in flags or "CE" not in flags
