"""PyTorch flight-recorder dumps (pickle or JSON, one a rank): who issued which collective last.

A rank whose last enqueued collective of a group is behind the others' never came to it: it is the laggard. Ranks whose
collective at one seq differs from the majority's are out of step. Pickles are read without running anything: a dump
that wants a class is refused.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lmr.engine.events import Collective, CollectiveDesynced, RankHung
from lmr.replay_tool.errors import Unreadable
from lmr.replay_tool.importers.sighting import Gleaned, Job, Sighting

_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle))?$")


@dataclass(frozen=True)
class Dump:
    """One rank's record: per group the last enqueued seq and the collective issued at each seq still remembered."""

    rank: int
    last: dict[str, int]
    issued: dict[tuple[str, int], str]
    waiting: dict[str, tuple[int, str, int]]
    at_ms: int | None


class _DataOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"wants {module}.{name}: a flight record holds plain data only")


def recognizes(head: bytes) -> bool:
    """True for a pickled or JSON record with entries."""
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return b"pg_config" in head or b"entries" in head or b"version" in head
    return head.lstrip().startswith(b"{") and (b'"pg_config"' in head or b'"pg_status"' in head or b'"entries"' in head)


def load(path: Path) -> Dump:
    """The dump of one rank.

    Raises:
        Unreadable: not a flight record, or one that would run code.
    """
    raw = path.read_bytes()
    try:
        found = json.loads(raw) if raw.lstrip().startswith(b"{") else _DataOnly(io.BytesIO(raw)).load()
        named = _RANK.search(path.name)
        rank = found.get("rank", int(named[1]) if named else None)
        if rank is None:
            raise Unreadable(str(path), "its name must end with the rank, as nccl_trace_rank_3")
        return _dump(int(rank), found)
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, KeyError, IndexError, TypeError) as error:
        raise Unreadable(str(path), f"no flight record: {error}") from error


def _dump(rank: int, found: dict[str, Any]) -> Dump:
    last: dict[str, int] = {}
    issued: dict[tuple[str, int], str] = {}
    waiting: dict[str, tuple[int, str, int]] = {}
    newest_ns = 0
    for group, status in (found.get("pg_status") or {}).items():
        last[str(group)] = int(status["last_enqueued_collective"])
    for entry in found.get("entries") or []:
        if entry.get("is_p2p"):
            continue
        group, seq = str(entry.get("pg_id", 0)), int(entry["collective_seq_id"])
        op = str(entry.get("profiling_name", "?")).rpartition(":")[2]
        sizes = json.dumps(entry.get("input_sizes") or [])
        issued[(group, seq)] = f"{op} {sizes}"
        last[group] = max(last.get(group, 0), seq)
        created_ns = int(entry.get("time_created_ns") or 0)
        newest_ns = max(newest_ns, created_ns)
        if entry.get("state") != "completed":
            waiting.setdefault(group, (seq, op, created_ns))
    return Dump(rank, last, issued, waiting, newest_ns // 1_000_000 or None)


def together(paths: list[Path], _job: Job) -> Gleaned:
    """What the dumps of several ranks say about each other."""
    gleaned = Gleaned()
    dumps = sorted((load(path) for path in paths), key=lambda dump: dump.rank)
    where = f"{len(dumps)} flight records"
    newest = max((dump.at_ms or 0 for dump in dumps), default=0) or None
    for group in sorted({group for dump in dumps for group in dump.last}):
        members = [dump for dump in dumps if group in dump.last]
        odd = _out_of_step(group, members)
        if odd is not None:
            seq, ranks = odd
            data = CollectiveDesynced(generation=0, ranks=ranks, group=group, collective_seq=seq)
            gleaned.sightings.append(Sighting(data, newest, None, where))
            continue
        hang = _behind(group, members)
        if hang is not None:
            gleaned.sightings.append(Sighting(hang, newest, None, where))
    if not gleaned.sightings:
        gleaned.notes.append(f"{where}: every rank issued the same collectives and none is behind")
    return gleaned


def _out_of_step(group: str, members: list[Dump]) -> tuple[int, tuple[int, ...]] | None:
    by_seq: dict[int, dict[int, str]] = defaultdict(dict)
    for dump in members:
        for (name, seq), what in dump.issued.items():
            if name == group:
                by_seq[seq][dump.rank] = what
    for seq in sorted(by_seq):
        kinds = Counter(by_seq[seq].values()).most_common()
        if len(kinds) > 1:
            majority = kinds[0][0] if kinds[0][1] > kinds[1][1] else None
            odd = tuple(sorted(rank for rank, what in by_seq[seq].items() if majority is not None and what != majority))
            return seq, odd
    return None


def _behind(group: str, members: list[Dump]) -> RankHung | None:
    furthest = max(dump.last[group] for dump in members)
    behind = tuple(dump.rank for dump in members if dump.last[group] < furthest)
    stuck = [dump.waiting[group] for dump in members if group in dump.waiting]
    if not stuck and not behind:
        return None
    if not stuck:
        return None
    seq, op, first_ns = min(stuck)
    newest_ns = max((dump.at_ms or 0) * 1_000_000 for dump in members)
    return RankHung(
        generation=0,
        ranks=behind if len(behind) * 2 < len(members) else (),
        phase="collective",
        stalled_ms=max(0, (newest_ns - first_ns) // 1_000_000),
        collective=Collective(group=group, seq=seq, op=op),
    )
