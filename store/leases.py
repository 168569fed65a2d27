"""The lease of the one writer, by the database's clock. Each acquisition raises the epoch: the last one is fenced."""

from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from lmr.store.dialect import Dialect
from lmr.store.errors import EpochFenced
from lmr.store.head import Lease
from lmr.store.schema import epochs, runs
from lmr.store.writing import lock_run, refuse_text

_set_lease = (
    update(runs)
    .where(runs.c.run_id == bindparam("run"), runs.c.epoch == bindparam("old_epoch"))
    .values(
        epoch=bindparam("new_epoch"),
        lease_holder=bindparam("holder"),
        lease_address=bindparam("address"),
        lease_expires_at_ms=bindparam("expires"),
    )
)
_lease_columns = select(
    runs.c.run_id, runs.c.epoch, runs.c.lease_holder, runs.c.lease_address, runs.c.lease_expires_at_ms
)


def acquire(dialect: Dialect, run_id: str, *, holder: str, address: str, ttl_ms: int) -> Lease | None:
    """The lease under a new epoch, or None while another holder's has not lapsed. The holder may take it anew."""
    refuse_text(run_id, holder)
    with dialect.write() as connection:
        row = lock_run(dialect, connection, run_id)
        held = row.lease_holder is not None and row.lease_expires_at_ms > row.clock_ms
        if held and row.lease_holder != holder:
            return None
        lease = Lease(row.epoch + 1, holder, address, row.clock_ms + ttl_ms)
        _store(connection, run_id, row.epoch, lease)
        connection.execute(
            insert(epochs).values(
                run_id=run_id, epoch=lease.epoch, holder=holder, address=address, acquired_at_ms=row.clock_ms
            )
        )
        return lease


def renew(dialect: Dialect, run_id: str, epoch: int, ttl_ms: int) -> Lease:
    """The lease, lasting `ttl_ms` from now; also when it had lapsed and nobody has taken it.

    Raises:
        EpochFenced: the run was taken over, or the lease given back.
    """
    with dialect.write() as connection:
        row = _own(dialect, connection, run_id, epoch)
        lease = Lease(epoch, row.lease_holder, row.lease_address, row.clock_ms + ttl_ms)
        _store(connection, run_id, epoch, lease)
        return lease


def release(dialect: Dialect, run_id: str, epoch: int) -> None:
    """Let the lease lapse now, so that the next holder need not wait. The epoch stays until it is taken.

    Raises:
        EpochFenced: the run was taken over.
    """
    with dialect.write() as connection:
        row = _own(dialect, connection, run_id, epoch)
        _store(connection, run_id, epoch, Lease(epoch, row.lease_holder, row.lease_address, row.clock_ms))


def current(connection: Connection, run_id: str) -> Lease | None:
    """The newest lease, lapsed or not; None when nobody ever had one."""
    row = connection.execute(_lease_columns.where(runs.c.run_id == run_id)).first()
    if row is None or row.lease_holder is None:
        return None
    return Lease(row.epoch, row.lease_holder, row.lease_address, row.lease_expires_at_ms)


def _own(dialect: Dialect, connection: Connection, run_id: str, epoch: int) -> Any:
    row = lock_run(dialect, connection, run_id)
    if row.epoch != epoch or row.lease_holder is None:
        raise EpochFenced(run_id, epoch, "", row.epoch, row.lease_holder)
    return row


def _store(connection: Connection, run_id: str, old_epoch: int, lease: Lease) -> None:
    values = {
        "run": run_id,
        "old_epoch": old_epoch,
        "new_epoch": lease.epoch,
        "holder": lease.holder,
        "address": lease.address,
        "expires": lease.expires_at_ms,
    }
    if connection.execute(_set_lease, values).rowcount != 1:
        raise EpochFenced(run_id, old_epoch, lease.holder, old_epoch, None)
