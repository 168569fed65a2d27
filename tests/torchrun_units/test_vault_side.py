"""A node and its vault's process: real processes, and an agent that is only this."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from lmr.integrations.torchrun.vault_link import VaultLink, vault_environ
from lmr.integrations.torchrun.vault_side import STARTS, VaultSide
from lmr.integrations.torchrun.worker_policy import WorkerPolicy


class KilledWhileStarting(VaultLink):
    """Its first processes are killed at once, as an out-of-memory killer or an operator might."""

    times = 0

    async def _find(self, process):
        if self.times > 0:
            self.times -= 1
            process.kill()
        return await super()._find(process)


@pytest.mark.parametrize(("times", "protected"), [(0, True), (STARTS - 1, True), (STARTS, False)])
def test_a_vault_that_is_killed_while_it_starts_is_started_again(monkeypatch, tmp_path, times, protected):
    monkeypatch.setattr(KilledWhileStarting, "times", times)
    environ = vault_environ("run", "node", b"secret", WorkerPolicy().model_dump(mode="json"))

    async def started():
        side = VaultSide(
            "node",
            lambda _: None,
            lambda *_, **__: None,
            lambda _: None,
            lambda _: None,
            lambda _: None,
            asyncio.ensure_future,
            KilledWhileStarting,
        )
        await side.start(f"lmr-vault-test-{os.getpid()}-{times}", environ)
        up = side.port is not None
        side.close(end_vault=True)
        return up

    assert asyncio.run(started()) is protected


class OrdersAtTheLoss(VaultLink):
    """A plan arrives in the very moment in which the vault's loss is heard."""

    def _gone(self, peer):
        super()._gone(peer)
        self.heard()


def test_a_plan_that_comes_with_the_loss_of_the_vault_waits_for_the_next_one():
    """The node restores from what is left, once its next vault is there; it does not leave the run."""
    environ = vault_environ("run", "node", b"secret", WorkerPolicy().model_dump(mode="json"))
    orders = SimpleNamespace(
        generation=1,
        step=7,
        mine=SimpleNamespace(slot=0),
        ranks=(0,),
        replicate_to=(),
        source={"slot": 0, "holder": "node", "tier": "memory"},
        history="h",
        head={"seq": 1, "hash": "h"},
    )

    async def told():
        said = asyncio.Queue()
        side = VaultSide(
            "node",
            said.put_nowait,
            lambda *_, **__: None,
            lambda _: None,
            lambda _: None,
            said.put_nowait,
            asyncio.ensure_future,
            OrdersAtTheLoss,
        )
        await side.start(f"lmr-vault-test-{os.getpid()}-loss", environ)
        side._link.heard = lambda: side.take(orders)
        side._link._process.kill()
        first = await asyncio.wait_for(said.get(), 60)
        side._link.heard = lambda: None
        side.close(end_vault=True)
        return first

    assert getattr(asyncio.run(told()), "why", "it left") == "missing"  # said by the next vault, which has no copy
