"""A node and its vault's process: real processes, and an agent that is only this."""

import asyncio
import os

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
