"""Which run of a log is meant."""

from __future__ import annotations

from lmr.store import EventLog


class RunNotChosen(Exception):
    """The log holds no such run, or several and none was named; the message says which there are."""


def chosen_run(log: EventLog, run_id: str | None) -> str:
    """The run named, or the only one there is.

    Raises:
        RunNotChosen: there is no such run, or it is not clear which one is meant.
    """
    runs = log.runs()
    if run_id is not None:
        if run_id in runs:
            return run_id
        raise RunNotChosen(f"{log.url} holds no run {run_id!r}; allowed: {', '.join(runs) or 'none yet'}")
    if not runs:
        raise RunNotChosen(f"{log.url} holds no run")
    if len(runs) > 1:
        raise RunNotChosen(f"{log.url} holds {len(runs)} runs; say --run: {', '.join(runs)}")
    return runs[0]
