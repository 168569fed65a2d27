"""LM Resiliency: closed-loop recovery for torchrun training.

The rooms are `lmr.engine` (pure decisions), `lmr.store` (the SQL event log), `lmr.integrations` (torchrun, state,
detectors, frameworks, the `lmr` command) and `lmr.replay_tool` (`lmr-replay`).

Training scripts need nothing from here. One whose loop cannot be followed may say two things itself: `lmr.track` and
`lmr.boundary`, described in docs/state.md.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing is a tenth of a supervisor's start
if TYPE_CHECKING:
    from lmr.integrations.frameworks.explicit import Stateful

__version__ = "0.1.0"
__all__ = ["boundary", "track"]


def track(name: str, thing: Stateful) -> None:
    """See `lmr.integrations.frameworks.explicit.track`."""
    from lmr.integrations.frameworks import explicit

    explicit.track(name, thing)


def boundary() -> int:
    """See `lmr.integrations.frameworks.explicit.boundary`."""
    from lmr.integrations.frameworks import explicit

    return explicit.boundary()
