"""Asks every health source now and then and publishes what is new as `device_unhealthy`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import TypeVar

import structlog

from lmr.engine.events import DeviceUnhealthy, EventData
from lmr.integrations.scout.detector_policy import HealthPolicy
from lmr.integrations.scout.health.counters import Disks, Edac, NetworkCards
from lmr.integrations.scout.health.kernel_log import KernelLog
from lmr.integrations.scout.health.memory import FreeMemory, OutOfMemoryKills
from lmr.integrations.scout.health.nvml import Nvml
from lmr.integrations.scout.health.source import Source

log = structlog.get_logger("lmr.health")

GROUP = "lmr.health_sources"
T = TypeVar("T")


def sources(policy: HealthPolicy) -> list[Source]:
    """The built-in sources and those that are installed; one that cannot be loaded is said and left out."""
    found: list[Source] = [
        KernelLog(),
        Edac(),
        NetworkCards(),
        Disks(),
        FreeMemory(policy.memory_floor_pct),
        OutOfMemoryKills(),
        Nvml(),
    ]
    for entry in entry_points(group=GROUP):
        try:
            made = entry.load()()
        except Exception as error:  # noqa: BLE001  somebody else's code
            log.error("health_source_not_loaded", source=entry.name, why=repr(error))
            continue
        if isinstance(made, Source):
            found.append(made)
        else:
            log.error("health_source_not_loaded", source=entry.name, why="not a Source")
    return [source for source in found if source.name not in policy.disabled_sources]


class HealthWatch:
    """The health of one node.

    Args:
        node: whose.
        policy: when to look.
        publish: takes each fact.
        watched: the sources.
    """

    def __init__(
        self, node: str, policy: HealthPolicy, publish: Callable[[EventData], None], watched: Iterable[Source]
    ) -> None:
        self._node = node
        self._policy = policy
        self._publish = publish
        self._sources = list(watched)
        self._standing: dict[str, set[tuple[str, str, str]]] = {}
        self._started = False

    def start(self) -> tuple[str, ...]:
        """Let every source begin; the names of those that have something to watch."""
        self._sources = [source for source in self._sources if self._safely(source, source.start)]
        self._started = True
        return tuple(source.name for source in self._sources)

    def look(self) -> list[DeviceUnhealthy]:
        """Ask every source once. What a source keeps saying is news only the first time; once it has stopped, again."""
        news = []
        for source in list(self._sources):
            findings = self._safely(source, source.look) or []
            before = self._standing.get(source.name, set())
            self._standing[source.name] = {finding.key for finding in findings}
            for finding in findings:
                if finding.key in before:
                    continue
                before = before | {finding.key}
                log.warning("device_unhealthy", device=finding.device, metric=finding.metric, detail=finding.detail)
                news.append(
                    DeviceUnhealthy(
                        node=self._node, device=finding.device, metric=finding.metric, severity=finding.severity
                    )
                )
        return news

    def _safely(self, source: Source, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  a broken source must not take the others along
            log.error("health_source_failed", source=source.name, why=repr(error))
            self._sources = [other for other in self._sources if other is not source]
            return None

    async def run(self) -> None:
        """Look for ever; cancel to end. Sources are asked in a thread, facts are published on the loop."""
        if not self._policy.enabled:
            return
        if not self._started:
            log.info("health_watched", sources=await asyncio.to_thread(self.start))
        try:
            while True:
                await asyncio.sleep(self._policy.check_ms / 1000)
                for fact in await asyncio.to_thread(self.look):
                    self._publish(fact)
        finally:
            for source in self._sources:
                source.close()
