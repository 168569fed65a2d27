"""Ranks that are slow on every machine: it is what the script lets them do, and no machine is to blame."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from lmr.integrations.scout.straggler import Key

log = structlog.get_logger("lmr.scout")


@dataclass
class SlowParts:
    """Remembers for the whole run which rank was slow in what, and where.

    The first rank often logs, draws or uploads for all. That costs it one machine; the next one shows that it is no
    better, and the rank is left alone from then on.
    """

    _where: dict[Key, str] = field(default_factory=dict)
    _left_alone: set[Key] = field(default_factory=set)

    def is_of_its_machine(self, key: Key, node: str) -> bool:
        """Whether a rank that is slow may be slow because of its machine, as far as is known.

        Args:
            key: rank, and what it is slow in.
            node: where it runs now.
        """
        if self._where.setdefault(key, node) != node and key not in self._left_alone:
            self._left_alone.add(key)
            log.warning("slow_on_every_machine", rank=key[0], component=key[1], nodes=(self._where[key], node))
        return key not in self._left_alone
