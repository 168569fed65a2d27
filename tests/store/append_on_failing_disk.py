"""Run by test_io_errors.py with failing_disk.c preloaded: an append for each write that can fail, and what was left.

Prints one JSON object: how many writes failed, at which heads that left the log, and what was not as it must be.
"""

import ctypes
import json
import tempfile
from pathlib import Path

from store_samples import batch

from lmr.store import LogUnavailable, open_log
from lmr.store.verify import verify_chain

disk = ctypes.CDLL(None)


def main() -> None:
    wrong: list[str] = []
    failed = 0
    heads: set[int] = set()
    for at in range(1, 400):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "events.db"
            log = open_log(path)
            log.append("r", batch(10))
            disk.lmr_fail_at(at)
            try:
                log.append("r", batch(40))
                acknowledged = 40
            except LogUnavailable:
                acknowledged = 10
            reached = disk.lmr_writes() >= at
            disk.lmr_fail_at(0)
            # As it is now, and as a process finds it that never saw the error.
            for name, reader in (("same process", log), ("reopened", open_log(path))):
                head = reader.head("r").seq
                heads.add(head)
                if head not in (10, 40) or head < acknowledged or verify_chain(reader, "r").fault is not None:
                    wrong.append(f"write {at}, {name}: acknowledged {acknowledged}, head {head}")
            if len(log.append("r", batch(40))) != 40 - head or verify_chain(log, "r").events != 40:
                wrong.append(f"write {at}: the second try did not complete the batch")
            log.close()
            reader.close()
        failed += reached
        if not reached:
            break
    else:
        wrong.append("the writes never came to an end")
    print(json.dumps({"failed": failed, "heads": sorted(heads), "wrong": wrong}))


main()
