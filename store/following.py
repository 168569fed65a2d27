"""Following a run: poll by seq. Hints from the database make it quicker; nothing depends on them."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog

from lmr.engine.record import Record
from lmr.store.errors import ConnectionLost

if TYPE_CHECKING:
    from lmr.store.log import EventLog

log = structlog.get_logger(__name__)


def follow(
    source: "EventLog", run_id: str, after: int, *, poll_ms: int, stop: Callable[[], bool] | None
) -> Iterator[Record]:
    """See `EventLog.follow`."""
    lost = False
    while stop is None or not stop():
        try:
            for record in source.read(run_id, after):
                yield record
                after = record.seq
            lost = False
            source.database.wait_for_hint(poll_ms)
        except ConnectionLost as error:
            if not lost:
                log.warning("log_connection_lost", url=source.url, run=run_id, after=after, error=str(error))
            lost = True
            time.sleep(poll_ms / 1000)
