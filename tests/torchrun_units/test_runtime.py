"""The agent's main loop and the node beside it: neither ever waits for the other's lock."""

import os
import signal
from types import SimpleNamespace

from torch.distributed.elastic.rendezvous import RendezvousParameters

from lmr.integrations.torchrun.config import read_config
from lmr.integrations.torchrun.runtime import NodeRuntime


def test_a_signal_while_the_agent_looks_for_news_does_not_stop_the_node(monkeypatch):
    """Its handler waits until the node's state is saved, and the node has news meanwhile."""
    runtime = NodeRuntime(
        read_config(RendezvousParameters("lm_resiliency", "localhost:29500", "run", 1, 1, None, nproc_per_node=1), {})
    )
    runtime._thread.start()
    done = []

    async def has_news():
        runtime._wake()

    def save(number, frame):
        done.append(number)
        runtime._do(has_news(), 5)

    class Node:
        @property
        def current(self):
            if not done:
                os.kill(os.getpid(), signal.SIGUSR1)
            return None

    seen = SimpleNamespace()
    monkeypatch.setattr(runtime, "_node", Node())
    before = signal.signal(signal.SIGUSR1, save)
    try:
        assert runtime.wait_for_change(seen, 1) is None
    finally:
        signal.signal(signal.SIGUSR1, before)
        runtime._loop.call_soon_threadsafe(runtime._loop.stop)
        runtime._thread.join(5)
    assert done == [signal.SIGUSR1]
