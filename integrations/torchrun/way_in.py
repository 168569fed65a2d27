"""How an agent finds its run: what the agents share before there is a link, and who decides."""

from __future__ import annotations

import asyncio

from lmr.integrations.torchrun.clock import Clock
from lmr.integrations.torchrun.config import BackendConfig, database_host
from lmr.integrations.torchrun.errors import AdmissionRefused
from lmr.integrations.torchrun.hosting import Hosting, fresh_secret
from lmr.integrations.torchrun.identity import address_towards
from lmr.integrations.torchrun.link import Locate
from lmr.integrations.torchrun.meeting import Host, Meeting


class WayIn:
    """From an endpoint, or a database and a secret file, to a secret and the decider's address.

    Args:
        config: checked settings.
        meeting: where the agents meet; None when the database and the secret file say it all.
        clock: this process's clocks.
    """

    def __init__(self, config: BackendConfig, meeting: Meeting | None, clock: Clock) -> None:
        self._config = config
        self._meeting = meeting
        self._clock = clock

    def own_address(self) -> str:
        """What peers reach this node by: as the user says, else towards where the run is."""
        if self._config.local_addr:
            return self._config.local_addr
        if self._meeting is not None:
            return address_towards(self._meeting.host_name, self._meeting.host_port or 1)
        return address_towards(*database_host(self._config.log_location))

    async def find(self, hosting: Hosting, address: str) -> tuple[bytes, Locate]:
        """The run's secret, and how to find who decides; hosts the run if nobody does.

        Args:
            hosting: this agent's part in deciding.
            address: this agent's own.

        Raises:
            MeetingFailed: the endpoint's host could not be reached.
            AdmissionRefused: the run does not take this agent.
            StoreError: the event log cannot be opened.
        """
        found = await (self._find_host(hosting) if self._config.embedded else self._find_database(hosting, address))
        if not found[0]:
            raise AdmissionRefused("the run has a secret: set LM_RESILIENCY_SECRET_FILE on every node")
        return found

    async def _find_host(self, hosting: Hosting) -> tuple[bytes, Locate]:
        """Embedded: the agent that serves the endpoint decides, and announces where."""
        meeting = self._meeting
        assert meeting is not None
        if meeting.serves:
            meeting.announce(await hosting.serve(self._config.secret or fresh_secret()))
        host = await self._met(meeting)
        return self._config.secret or host.secret, _always(host.address, host.port)

    async def _find_database(self, hosting: Hosting, address: str) -> tuple[bytes, Locate]:
        """A database server holds the log and says who decides; what must be found is the secret."""
        await hosting.open_log()
        secret = self._config.secret
        if secret is None:
            assert self._meeting is not None
            if self._meeting.serves:
                self._meeting.announce(Host(address, 0, fresh_secret()))
            secret = (await self._met(self._meeting)).secret
        return secret, hosting.stand(secret)

    async def _met(self, meeting: Meeting) -> Host:
        until = self._clock.monotonic() + self._config.join_timeout_ms / 1000
        return await asyncio.to_thread(meeting.find, until)


def _always(host: str, port: int) -> Locate:
    async def locate() -> tuple[str, int]:
        return host, port

    return locate
