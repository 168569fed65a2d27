"""What `lmr doctor` asks of a machine, whatever the run: system, versions, memory, sockets, ports, clock."""

from __future__ import annotations

import ctypes
import importlib.metadata
import mmap
import os
import platform
import re
import socket
import sys
from collections.abc import Callable

from lmr.integrations.frameworks.registry import SUPPORT, installed, is_too_old, judge
from lmr.integrations.gemini.vault.memory import available_bytes
from lmr.integrations.operate.finding import Finding

MEMORY_LEAST_BYTES = 2 * 1024**3
TORCH_LEAST = (2, 13)
KERNEL_LEAST = (5, 3)
"""pidfd_open: the warm process waits for its trainers with it."""
GROUP = "torchrun.handlers"
BACKEND = "lm_resiliency"
_TIMEX_BYTES = 208
_STA_UNSYNC = 0x40


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def system() -> Finding:
    """Linux, and new enough."""
    release = platform.release()
    fine = sys.platform == "linux" and _numbers(release) >= KERNEL_LEAST
    wanted = ".".join(map(str, KERNEL_LEAST))
    return Finding(
        "system", fine, f"{sys.platform} {release}", f"the supervisor and the vault need Linux {wanted} or newer"
    )


def python() -> Finding:
    """An interpreter that is supported."""
    fine = sys.version_info >= (3, 10)
    return Finding("python", fine, platform.python_version(), "use Python 3.10 or newer on every node, the same on all")


def torch() -> Finding:
    """A torch the backend is written for."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", fine=False, detail="not installed", cure="pip install 'lm-resiliency-engine[torch]'")
    cure = "pip install 'torch>=2.13': the backend is written for torch 2.13 and newer"
    return Finding("torch", _numbers(version) >= TORCH_LEAST, version, cure)


def digests() -> Finding:
    """What state is digested with."""
    found = []
    for package in ("blake3", "xxhash"):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            cure = "pip install 'lm-resiliency-engine[torch]'"
            return Finding(package, fine=False, detail="not installed", cure=cure)
    return Finding("digests", fine=True, detail=", ".join(found))


def frameworks() -> Finding:
    """Frameworks that are installed in a version an adapter was tested with."""
    found = installed()
    old = [s for s in SUPPORT.values() if s.name in found and is_too_old(s, found[s.name])]
    said = [judge(s, found[s.name]) or f"{s.name} {found[s.name]}" for s in SUPPORT.values() if s.name in found]
    cure = "; ".join(f"pip install '{s.distribution}>={s.oldest}'" for s in old)
    return Finding("frameworks", not old, "; ".join(said) or "none", cure)


def entry_point() -> Finding:
    """torchrun finds our backend, once, and it can be loaded."""
    found = [p for p in importlib.metadata.entry_points(group=GROUP) if p.name == BACKEND]
    values = sorted({f"{p.value} ({p.dist.name if p.dist else '?'})" for p in found})
    what = "torchrun backend"
    if not values:
        return Finding(
            what, fine=False, detail="not registered", cure="pip install the package; its folder is not enough"
        )
    if len(values) > 1:
        cure = "torchrun takes the first it finds: pip uninstall the other distribution"
        return Finding(what, fine=False, detail=", ".join(values), cure=cure)
    try:
        found[0].load()()
    except Exception as error:  # noqa: BLE001  whatever it is, torchrun would only say "not registered"
        cure = "pip install --force-reinstall 'lm-resiliency-engine[torch]'"
        return Finding(what, fine=False, detail=f"{values[0]} cannot be loaded: {error!r}", cure=cure)
    return Finding(what, fine=True, detail=values[0])


def memory() -> Finding:
    """Room for copies of state."""
    available = available_bytes()
    cure = "give the machine, or this control group, more: the vault keeps several copies of state (docs/state.md)"
    return Finding("free memory", available >= MEMORY_LEAST_BYTES, f"{available / 1024**3:.1f} GiB", cure)


def shared_memory() -> Finding:
    """Anonymous memory that two processes write to: what the vault hands to trainers."""
    try:
        fd = os.memfd_create("lmr-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, mmap.PAGESIZE)
            with mmap.mmap(fd, mmap.PAGESIZE) as mine, mmap.mmap(fd, mmap.PAGESIZE) as other:
                mine[:5] = b"lmr-1"
                fine = other[:5] == b"lmr-1"
        finally:
            os.close(fd)
    except OSError as error:
        cure = "allow memfd_create in this sandbox (seccomp profile), and raise its memory limit"
        return Finding("shared memory", fine=False, detail=str(error), cure=cure)
    return Finding("shared memory", fine, "memfd works; /dev/shm is not used", "use a kernel with coherent memfds")


def local_sockets() -> Finding:
    """Sockets without a file, which the processes of a node talk through."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.bind(f"\0lmr-doctor-{os.getpid()}")
    except OSError as error:
        cure = "allow abstract Unix sockets in this sandbox"
        return Finding("local sockets", fine=False, detail=str(error), cure=cure)
    return Finding("local sockets", fine=True, detail="abstract SOCK_SEQPACKET works")


def ports() -> Finding:
    """A port can be opened and reached: link, peers and vault each listen on a free one."""
    try:
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=3):
                pass
    except OSError as error:
        cure = "allow listening TCP sockets on ports of the system's choice (net.ipv4.ip_local_port_range)"
        return Finding("ports", fine=False, detail=str(error), cure=cure)
    low, high = _port_range()
    return Finding("ports", fine=True, detail=f"nodes must reach each other on {low} to {high}")


def _port_range() -> tuple[str, str]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:  # noqa: PTH123
            low, high = file.read().split()
    except (OSError, ValueError):
        return "32768", "60999"
    return low, high


def clock() -> Finding:
    """Whether the kernel's clock is kept by somebody.

    No decision depends on it, so that a free-running clock is said and no fault; see `doctor_run.event_log` for the
    difference that matters.
    """
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(buffer) < 0:
        return Finding("clock", fine=True, detail="the kernel does not say whether it is synchronized")
    status = int.from_bytes(buffer.raw[40:44], sys.byteorder)
    if status & _STA_UNSYNC:
        return Finding(
            "clock", fine=True, detail="not synchronized: times of other nodes' events will differ by as much"
        )
    return Finding("clock", fine=True, detail="synchronized")


CHECKS: tuple[Callable[[], Finding], ...] = (
    system,
    python,
    torch,
    digests,
    frameworks,
    entry_point,
    memory,
    shared_memory,
    local_sockets,
    ports,
    clock,
)
