"""Which steps are certified.

Certified: complete when captured, at least one check ran on it, all its checks are clean, and so are those of
`certify_checks - 1` later checked steps with none bad between.
"""

from collections.abc import Iterable

from lmr.engine.snapshots import Snapshot, Snapshots


def certified(snapshots: Snapshots, certify_checks: int) -> list[Snapshot]:
    """The certified snapshots, newest first."""
    found: list[Snapshot] = []
    clean_above = 0
    for snapshot in snapshots.newest_first():
        if snapshot.corrupt_seq is not None:
            clean_above = 0
            continue
        enough = clean_above >= certify_checks - 1
        if snapshot.was_complete and ((snapshot.clean and enough) or snapshot.certified_for_good):
            found.append(snapshot)
        if snapshot.clean:
            clean_above += 1
    return found


def prune(snapshots: Snapshots, certify_checks: int, *, keep: int, keep_trusted: int) -> None:
    """Forgets old steps so that memory and cost do not grow with the log.

    Kept are the newest `keep` snapshots, and the newest `keep_trusted` certified and durable ones, which stay what they
    are when the checks above them are forgotten.
    """
    trusted = certified(snapshots, certify_checks)
    protected = _ids(trusted[:keep_trusted])
    durable = [snapshot for snapshot in snapshots.newest_first() if snapshot.durable]
    protected |= _ids(durable[:keep_trusted])
    for index, snapshot in enumerate(list(snapshots.newest_first())):
        if index < keep:
            continue
        if id(snapshot) in protected:
            snapshot.certified_for_good = any(snapshot is one for one in trusted)
        else:
            snapshots.forget(snapshot)


def _ids(snapshots: Iterable[Snapshot]) -> set[int]:
    return {id(snapshot) for snapshot in snapshots}
