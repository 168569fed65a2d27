"""What the user typed: `--rdzv-conf`, the environment, read once at the edge."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmr.integrations.torchrun.errors import ConfigInvalid
from lmr.integrations.torchrun.worker_policy import WorkerPolicy, load_worker_policy

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

PREFIX = "lm_resiliency_"
OUR_KEYS = (
    "lm_resiliency_event_log",
    "lm_resiliency_heartbeat_timeout_ms",
    "lm_resiliency_join_timeout_ms",
    "lm_resiliency_restart_context_path",
    "lm_resiliency_worker_config",
)
STORE_TYPES = ("tcp", "file")
HEARTBEAT_TIMEOUT_MS = 2_000
"""A node not heard of for so long is lost. Above scheduling hiccups, below the policy's `lease_ms`."""
JOIN_TIMEOUT_MS = 600_000
"""How long an agent looks for the run at its endpoint: allocations start minutes apart."""


@dataclass(frozen=True)
class BackendConfig:
    """The settings of one agent, checked."""

    run_id: str
    endpoint: str
    store_type: str
    is_host: bool | None
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    event_log: str | None
    heartbeat_timeout_ms: int
    join_timeout_ms: int
    restart_context: Path | None
    worker_policy: WorkerPolicy
    secret: bytes | None
    failure_domain: str | None

    @property
    def embedded(self) -> bool:
        """Whether the log lives with the rendezvous host (SQLite) instead of in a database server."""
        return self.event_log is None or self.event_log.startswith("sqlite") or "://" not in self.event_log

    @property
    def state_folder(self) -> Path:
        """Where the embedded log lives when nothing else is said: beside the restart context."""
        if self.restart_context is not None:
            return self.restart_context.parent
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        return Path(base) / "lmr" / _file_name(self.run_id)

    @property
    def log_location(self) -> str:
        """The event log's SQLAlchemy URL or SQLite path."""
        return self.event_log or str(self.state_folder / "events.db")


def database_host(url: str) -> tuple[str, int]:
    """Host and port of a database server's URL; localhost when it is reached by a local socket."""
    from sqlalchemy.engine import make_url

    parsed = make_url(url)
    return parsed.host or "localhost", parsed.port or 5432


def _file_name(run_id: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in run_id)


def read_config(params: RendezvousParameters, environ: Mapping[str, str] = os.environ) -> BackendConfig:
    """Check everything an agent was given, before anything is started.

    Raises:
        ConfigInvalid: an unknown or ill-typed key, an unreadable policy, a missing or unusable `--rdzv-id`.
    """
    given: dict[str, Any] = dict(params.config)
    if params.run_id in ("", "none"):
        raise ConfigInvalid("--rdzv-id is missing: give every run its own id, the same on all its nodes")
    if "/" in params.run_id:
        raise ConfigInvalid(f"--rdzv-id is {params.run_id!r}; allowed: no '/', torchrun names a log folder after it")
    unknown = sorted(key for key in given if key.startswith(PREFIX) and key not in OUR_KEYS)
    if unknown:
        raise ConfigInvalid(f"--rdzv-conf: unknown key {unknown[0]!r}; allowed: {', '.join(OUR_KEYS)}")
    store_type = str(given.get("store_type", "tcp")).strip().lower()
    if store_type not in STORE_TYPES:
        raise ConfigInvalid(f"--rdzv-conf: store_type is {store_type!r}; allowed: {', '.join(STORE_TYPES)}")
    if not params.endpoint:
        raise ConfigInvalid("--rdzv-endpoint is missing: HOST:PORT, or a path with store_type=file")
    policy_path = given.get("lm_resiliency_worker_config")
    context = given.get("lm_resiliency_restart_context_path")
    return BackendConfig(
        run_id=params.run_id,
        endpoint=params.endpoint,
        store_type=store_type,
        is_host=_flag(given, "is_host"),
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_addr=params.local_addr,
        event_log=given.get("lm_resiliency_event_log") or environ.get("LM_RESILIENCY_EVENT_LOG") or None,
        heartbeat_timeout_ms=_milliseconds(given, "lm_resiliency_heartbeat_timeout_ms", HEARTBEAT_TIMEOUT_MS, 200),
        join_timeout_ms=_milliseconds(given, "lm_resiliency_join_timeout_ms", JOIN_TIMEOUT_MS, 1),
        restart_context=Path(context).absolute() if context else None,
        worker_policy=load_worker_policy(Path(policy_path)) if policy_path else WorkerPolicy(),
        secret=_secret(environ.get("LM_RESILIENCY_SECRET_FILE")),
        failure_domain=environ.get("LM_RESILIENCY_FAILURE_DOMAIN") or None,
    )


def _milliseconds(given: Mapping[str, Any], key: str, default: int, least: int) -> int:
    raw = given.get(key, default)
    try:
        value = int(raw)
    except (TypeError, ValueError):
        value = -1
    if value < least:
        raise ConfigInvalid(f"--rdzv-conf: {key} is {raw!r}; allowed: a whole number of milliseconds, at least {least}")
    return value


def _flag(given: Mapping[str, Any], key: str) -> bool | None:
    if key not in given:
        return None
    text = str(given[key]).strip().lower()
    if text in ("1", "true", "yes", "t", "y"):
        return True
    if text in ("0", "false", "no", "f", "n"):
        return False
    raise ConfigInvalid(f"--rdzv-conf: {key} is {given[key]!r}; allowed: true, false")


def _secret(path: str | None) -> bytes | None:
    if not path:
        return None
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigInvalid(f"LM_RESILIENCY_SECRET_FILE: cannot read {path}: {error.strerror}") from None
    if len(secret) < 16:
        raise ConfigInvalid(f"LM_RESILIENCY_SECRET_FILE: {path} holds {len(secret)} bytes; allowed: at least 16")
    return secret
