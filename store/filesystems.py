"""Which file system a path lies on. SQLite's WAL needs shared memory, which network file systems do not give."""

import os
import re
from pathlib import Path

_NETWORK_TYPES = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs"}
    | {"panfs", "pvfs2", "smb3", "smbfs", "wekafs"}
)
_OCTAL = re.compile(r"\\([0-7]{3})")
_MOUNTS = Path("/proc/self/mounts")


def filesystem_of(path: Path) -> str:
    """Type of the file system that holds `path` (or will), as the kernel names it; empty when it does not say."""
    target = path.resolve()
    best, kind = "", ""
    try:
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(" ")
        mount = (
            fields[1].encode("ascii", "surrogateescape").decode("unicode_escape") if "\\" in fields[1] else fields[1]
        )
        inside = mount == "/" or str(target) == mount or str(target).startswith(mount + os.sep)
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


def is_network(kind: str) -> bool:
    """True for a file system whose files several machines share."""
    return kind in _NETWORK_TYPES or kind.startswith("fuse.")
