"""Copies on this node's disk: they outlive the vault, the job and the machine's power.

    FOLDER/RUN/NODE/step-00000120.slot-0.generation-1.shards     the ranks' shards, one after the other
    FOLDER/RUN/NODE/step-00000120.slot-0.generation-1.json       what they are: header, digests, length

Each file is written under another name, synced and renamed; the manifest comes last, so a copy exists when its manifest
does. Bytes are checked against the manifest's digests when they are read. Reading and writing are for threads that may
wait; `DiskTier` has one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from lmr.integrations.gemini.errors import ShardMismatch
from lmr.integrations.gemini.vault import transfer
from lmr.integrations.gemini.vault.copies import Copy, Key
from lmr.integrations.gemini.vault.transfer import CopyHeader

_log = structlog.get_logger(__name__)
SCHEMA_VERSION = 1
_CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class DiskCopy:
    """One slot's state of one step, on disk."""

    header: CopyHeader
    history: str
    """Which history of the run it belongs to; see `Room.enter`."""
    data: Path
    manifest: Path

    @property
    def key(self) -> Key:
        """What names the copy."""
        return (self.header.generation, self.header.step, self.header.slot)

    def fact(self, node: str) -> dict[str, Any]:
        """What is said of it."""
        header = self.header
        data = {"generation": header.generation, "step": header.step, "slot": header.slot, "holder": node}
        return {"kind": "checkpoint_flushed", "data": {**data, "digest": header.digest}}

    def open(self) -> BinaryIO:
        """The bytes; stay readable when the copy is deleted meanwhile.

        Raises:
            ShardMismatch: `missing`, or `digest_mismatch` when the file is shorter or longer than was written.
        """
        try:
            file = self.data.open("rb")
        except OSError as error:
            raise ShardMismatch("missing", f"{self.data}: {error.strerror}") from None
        found = os.fstat(file.fileno()).st_size
        if found != self.header.total_bytes:
            file.close()
            raise ShardMismatch("digest_mismatch", f"{self.data} has {found} bytes of {self.header.total_bytes}")
        return file

    def read_into(self, memories: dict[int, memoryview]) -> None:
        """Fill each rank's memory and check it against the digests.

        Raises:
            ShardMismatch: the file is gone, cut off or damaged.
        """
        with self.open() as file:
            for rank in sorted(self.header.shards):
                memory = memories[rank]
                try:
                    got = file.readinto(memory)  # type: ignore[attr-defined]
                except OSError as error:
                    raise ShardMismatch("digest_mismatch", f"{self.data}: {error.strerror}") from None
                if got != len(memory):
                    raise ShardMismatch("digest_mismatch", f"{self.data} ends early")
        transfer.verify(self.header, memories)


def node_folder(folder: Path, run: str, node: str) -> Path:
    """Where one node of one run writes."""
    return folder / _file_name(run) / _file_name(node)


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in text)


def write(
    folder: Path,
    header: CopyHeader,
    history: str,
    memories: dict[int, memoryview],
    head: dict[str, Any] | None = None,
) -> DiskCopy:
    """Write one copy; it is there completely or not at all.

    `head`, seq and hash of a record of the event log, stands in the manifest: it anchors the log outside the database.

    Raises:
        OSError: the disk is full, read-only or broken; nothing is left behind.
    """
    stem = f"step-{header.step:08d}.slot-{header.slot}.generation-{header.generation}"
    made = DiskCopy(header, history, folder / f"{stem}.shards", folder / f"{stem}.json")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made.manifest.unlink(missing_ok=True)
    body: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "history": history, "copy": header.to_json()}
    if head:
        body |= {"run": header.run, "head": head}
    _write_file(made.data, (memories[rank] for rank in sorted(memories)))
    _write_file(made.manifest, [memoryview(json.dumps(body).encode())])
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)
    return made


def _write_file(path: Path, memories: Iterable[memoryview]) -> None:
    fresh = path.with_name(path.name + ".part")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            for memory in memories:
                at = 0
                while at < len(memory):
                    at += os.write(fd, memory[at : at + _CHUNK_BYTES])
            os.fsync(fd)
            # Nobody reads it soon: the page cache belongs to the training.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def scan(folder: Path, run: str) -> list[DiskCopy]:
    """The copies of a run in a folder; what was left half written is deleted, what cannot be read is passed over."""
    found = []
    for part in folder.glob("*.part"):
        with contextlib.suppress(OSError):
            part.unlink()
    for manifest in sorted(folder.glob("*.json")):
        data = manifest.with_suffix(".shards")
        try:
            body = json.loads(manifest.read_text(encoding="utf-8"))
            if body["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema_version {body['schema_version']}")
            copy = DiskCopy(CopyHeader.parse(body["copy"]), str(body["history"]), data, manifest)
            copy.open().close()
        except (OSError, ValueError, KeyError, TypeError, ShardMismatch) as error:
            _log.error("vault.disk_copy_unusable", manifest=str(manifest), why=str(error))
            continue
        if copy.header.run == run:
            found.append(copy)
    return found


class DiskTier:
    """What this node has on disk. All but `DiskCopy.read_into` is called on the reactor's thread.

    Args:
        folder: of this node and run.
        run: the run's id.
        keep: newest steps that stay; older ones are deleted.
        post: runs a callable on the reactor's thread.
        flushed: called with each copy that has been written.
        dropped: called with each copy that is deleted, and why.
        failed: called with a step that could not be written, and why.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        keep: int,
        post: Callable[[Callable[[], None]], None],
        flushed: Callable[[DiskCopy], None],
        dropped: Callable[[DiskCopy, str], None],
        failed: Callable[[int, str], None],
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._post = post
        self._flushed = flushed
        self._dropped = dropped
        self._failed = failed
        self.copies: dict[Key, DiskCopy] = {copy.key: copy for copy in scan(folder, run)}
        self._writing: dict[Key, list[Callable[[], None]]] = {}
        self._queue: deque[tuple[CopyHeader, str, Copy, dict[str, Any] | None]] = deque()
        self._change = threading.Condition()
        threading.Thread(target=self._work, name="disk", daemon=True).start()

    def find(self, step: int, slot: int) -> DiskCopy | None:
        """The copy of a step, of the newest generation that has one."""
        found = [c for key, c in self.copies.items() if key[1:] == (step, slot)]
        return max(found, key=lambda copy: copy.key, default=None)

    def save(
        self,
        header: CopyHeader,
        history: str,
        copy: Copy,
        then: Callable[[], None] | None = None,
        head: dict[str, Any] | None = None,
    ) -> None:
        """Write a measured copy in turn; `then` is called when it is there, or could not be written."""
        waiting = [then] if then is not None else []
        if copy.key in self.copies:
            for call in waiting:
                call()
        elif copy.key in self._writing:
            self._writing[copy.key] += waiting
        else:
            self._writing[copy.key] = waiting
            copy.hold()
            with self._change:
                self._queue.append((header, history, copy, head))
                self._change.notify()

    def drop(self, copy: DiskCopy, why: str) -> None:
        """Delete a copy, the manifest first."""
        if self.copies.pop(copy.key, None) is None:
            return
        for path in (copy.manifest, copy.data):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("vault.disk_copy_not_deleted", path=str(path), error=error.strerror)
        self._dropped(copy, why)

    def clear(self) -> None:
        """The run has succeeded: nobody will ever want its steps back, nor what is left of damaged ones."""
        for copy in list(self.copies.values()):
            self.drop(copy, "run_succeeded")
        for path in self._folder.glob("step-*.slot-*.generation-*"):
            with contextlib.suppress(OSError):
                path.unlink()
        for folder in (self._folder, self._folder.parent):
            with contextlib.suppress(OSError):  # another node's, or never made
                folder.rmdir()

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._queue:
                    self._change.wait()
                header, history, copy, head = self._queue.popleft()
            memories = copy.memories()
            written: DiskCopy | None = None
            why = ""
            try:
                written = write(self._folder, header, history, memories, head)
            except OSError as error:
                why = error.strerror or str(error)
            memories.clear()
            self._post(lambda c=copy, w=written, y=why: self._finished(c, w, y))  # type: ignore[misc]

    def _finished(self, copy: Copy, written: DiskCopy | None, why: str) -> None:
        copy.let_go()
        if written is None:
            self._failed(copy.step, why)
        else:
            self.copies[written.key] = written
            self._flushed(written)
            self._tidy()
        for then in self._writing.pop(copy.key, []):
            then()

    def _tidy(self) -> None:
        """Keep the newest steps; of what is kept, all slots."""
        kept = set(sorted({step for _, step, _ in self.copies}, reverse=True)[: self._keep])
        for copy in list(self.copies.values()):
            if copy.header.step not in kept:
                self.drop(copy, "superseded")
