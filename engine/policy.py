"""The recovery policy: every number the rules use, with its unit, default and reason.

It is the `[recovery]` table of the worker policy, flat. The run's first event records it whole, `policy_changed`
replaces it from there on, and every plan names its digest.
"""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lmr.engine.canonical import MAX_INTEGER, canonical_bytes
from lmr.engine.errors import PolicyInvalid

DAY_S = 86_400
YEAR_S = 366 * DAY_S


class RecoveryPolicy(BaseModel):
    """Tunables of the decision rules. Units are in the names: `_ms`, `_s`, `_pct`; the rest are counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    settle_ms: int = Field(
        300,
        ge=0,
        le=600_000,
        description="Milliseconds from an incident's first fact to its decision. Peers of a dead rank fail in the "
        "collective within some hundred milliseconds; deciding on the first fact alone would blame an echo.",
    )
    lease_ms: int = Field(
        3_000,
        ge=0,
        le=3_600_000,
        description="Milliseconds to wait, after only secondary exits, for every active node to answer or one to be "
        "lost. Above the heartbeat timeout, so that a silently dying node is named before nobody is blamed.",
    )
    stall_settle_ms: int = Field(
        5_000,
        ge=0,
        le=3_600_000,
        description="Milliseconds an input or checkpoint stall settles: one detector period, so that a storage outage "
        "that ranks notice at different moments is one story.",
    )
    start_s: int = Field(
        120,
        ge=1,
        le=DAY_S,
        description="Seconds from a plan until each of its nodes has started its workers; after that the silent nodes "
        "are lost. Covers process start, imports and the first collective of a large job.",
    )
    restore_s: int = Field(
        900,
        ge=1,
        le=DAY_S,
        description="Seconds from the last node's start until training resumes, else the restore has failed. Covers "
        "reading a durable checkpoint at a slow hour.",
    )
    standby_wait_s: int = Field(
        600,
        ge=0,
        le=30 * DAY_S,
        description="Seconds a hold waits for enough standbys before the run halts: schedulers reboot or hand out a "
        "node in minutes, and a held allocation costs as much as a training one.",
    )
    blame_window_s: int = Field(
        3_600,
        ge=1,
        le=YEAR_S,
        description="Seconds an incident stays attributed to its node. Lemon nodes fail again within the hour; "
        "unrelated failures of one node are days apart.",
    )
    restarts_before_replace: int = Field(
        2,
        ge=0,
        le=1_000,
        description="Process crashes of one node within the blame window that restart in place; one more replaces it. "
        "Reattempt, then evict: most crashes are transient.",
    )
    straggler_windows: int = Field(
        5,
        ge=1,
        le=1_000_000,
        description="Consecutive detector windows a rank must be slow. Blips of one or two windows are common and "
        "cost less than a recovery.",
    )
    straggler_pct: int = Field(
        10,
        ge=1,
        le=100_000,
        description="Slowdown in percent from which a persistent straggler is worth a recovery.",
    )
    certify_checks: int = Field(
        1,
        ge=1,
        le=1_000,
        description="Clean checks that certify a step: its own and those of this many minus one later checked steps. "
        "More catch corruption that shows late, at the price of an older restore point.",
    )
    no_progress_generations: int = Field(
        3,
        ge=1,
        le=1_000,
        description="Generations in a row without progress after which the run halts: what comes back three times "
        "comes back for ever.",
    )
    max_recoveries: int = Field(
        100,
        ge=0,
        le=1_000_000,
        description="Recoveries of one run. Ends a run that fails slowly, with progress each time, but never stops "
        "failing.",
    )
    horizon_s: int | None = Field(
        None,
        ge=1,
        le=YEAR_S,
        description="Seconds of training still ahead, for the cost-aware straggler rule: replace only when the time "
        "gained until then exceeds the recovery's cost. Absent: the plain rule.",
    )
    publish_ms: int = Field(
        1_000,
        ge=0,
        le=3_600_000,
        description="Least milliseconds between two publications of captures by one node: bounds the log's volume, "
        "not what is captured.",
    )

    @classmethod
    def from_table(cls, table: Mapping[str, Any], *, strict: bool = True) -> "RecoveryPolicy":
        """The policy of a flat table; a missing key means the default.

        Args:
            table: keys of this model.
            strict: an unknown or ill-typed key is an error. Otherwise it is ignored: a reader of old or newer logs
                decides with what it knows.

        Raises:
            PolicyInvalid: naming the key, and what would be allowed. Only when strict.
        """
        try:
            return cls.model_validate(dict(table))
        except ValidationError as error:
            wrong = {str(item["loc"][0]): item["msg"] for item in error.errors() if item["loc"]}
        if strict:
            key, why = next(iter(wrong.items()), ("[recovery]", "not a table"))
            known = f"; known keys: {', '.join(sorted(cls.model_fields))}" if key not in cls.model_fields else ""
            raise PolicyInvalid(key, why + known)
        return cls.model_validate({key: value for key, value in table.items() if key not in wrong})

    def table(self) -> dict[str, int | None]:
        """The flat table, whole: what `run_opened` records."""
        return self.model_dump()

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(b"lmr-policy-1\0" + canonical_bytes(self.table())).hexdigest()

    def digest(self) -> str:
        """Hex SHA-256 of the whole table; equal policies have equal digests."""
        return self._digest


assert MAX_INTEGER > YEAR_S * 1000
