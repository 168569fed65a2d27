"""What happens to a node's workers is said once a generation."""

from lmr.engine.events import Data, GenerationStarted
from lmr.integrations.torchrun.worker_reports import WorkerReports


async def flush() -> None:
    """The vault has nothing to say."""


def test_workers_that_were_taken_for_silent_ones_start_once():
    """On a loaded machine they report themselves after the agent has given them up."""
    facts: list[Data] = []
    reports = WorkerReports("node-1", facts.append, flush, lambda coroutine: coroutine.close())
    reports.expect(0, (0, 1))
    reports.started()
    reports.started()
    reports.expect(1, (0, 1))
    reports.started()
    assert facts == [GenerationStarted(generation=n, node="node-1") for n in (0, 1)]
