"""What is done to one node from outside: to its processes and to the memory of its vault."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lmr.integrations.faults.campaign import ENV_MARKS
from lmr.integrations.faults.marks import node_of

_VAULT = "lmr.integrations.gemini.vault"
_KEPT_SHARE = 16
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Machine:
    """The processes one runner has started, wherever they have gone since.

    Args:
        marks: folder of the marks, by which its processes are known.
        node: its name; several nodes of a run may share a machine.
    """

    marks: Path
    node: str

    def processes(self) -> list[int]:
        """All of them; not the runner itself."""
        found = []
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            environ = _environ(pid)
            mine = environ.get(ENV_MARKS) == str(self.marks) and node_of(environ) == self.node
            if mine and pid != os.getpid():
                found.append(pid)
        return found

    def kill(self) -> str:
        """SIGKILL to everything; SIGSTOP goes first, so that nothing acts between the first death and the last."""
        pids = self.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return f"{len(pids)} processes killed"

    def kill_vault(self) -> str:
        """SIGKILL to the vault; its memory goes with it."""
        vaults = self._vaults()
        for pid in vaults:
            os.kill(pid, signal.SIGKILL)
        return f"{len(vaults)} vaults killed"

    def corrupt_copies(self) -> str:
        """Flip one bit in every page of every copy the vault holds in memory."""
        count = 0
        for memory in self._copies():
            for at in range(_PAGE_BYTES // 2, len(memory), _PAGE_BYTES):
                memory[at] ^= 1
            count += 1
        return f"{count} copies damaged"

    def truncate_copies(self) -> str:
        """Lose all but the first sixteenth of every copy. Their length is sealed: what is lost reads as zeros."""
        count = 0
        for memory in self._copies():
            kept = len(memory) // _KEPT_SHARE
            memory[kept:] = bytes(len(memory) - kept)
            count += 1
        return f"{count} copies cut"

    def _vaults(self) -> list[int]:
        return [pid for pid in self.processes() if _VAULT in _arguments(pid)]

    def _copies(self) -> Iterator[mmap.mmap]:
        """Every buffer of the vault, once, writable: a vault's memory is open to its own user."""
        for pid in self._vaults():
            folder = Path("/proc", str(pid), "fd")
            seen = set()
            for entry in os.listdir(folder):
                with contextlib.suppress(FileNotFoundError):
                    if not str((folder / entry).readlink()).startswith("/memfd:lmr-vault-"):
                        continue
                    with (folder / entry).open("r+b", buffering=0) as file:
                        inode = os.fstat(file.fileno()).st_ino
                        if inode not in seen:  # a mapping keeps a descriptor of its own
                            seen.add(inode)
                            with mmap.mmap(file.fileno(), 0) as memory:
                                yield memory


def _environ(pid: int) -> dict[str, str]:
    pairs = (part.partition("=") for part in _words(pid, "environ"))
    return {key: value for key, _, value in pairs}


def _arguments(pid: int) -> list[str]:
    return _words(pid, "cmdline")


def _words(pid: int, name: str) -> list[str]:
    try:
        return Path("/proc", str(pid), name).read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
