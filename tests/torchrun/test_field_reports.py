"""What people reported of systems of this kind, each with real agents and real signals. Named after the report."""

import pytest

pytestmark = pytest.mark.torchrun


def test_pytorch_194710_a_parked_standby_ends_cleanly_with_the_job(waiting):
    """The standby of a finished job exits with 0 and without a traceback."""
    loop = waiting(nodes="1:2")
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    assert loop.active() == ["node-1"]
    loop.finish_well("node-1", "node-2")
    assert len(loop.plans()) == 1
