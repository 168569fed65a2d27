"""What becomes of verdicts: they belong in the log when the copy they speak of does."""

from __future__ import annotations

from typing import Any

from lmr.engine.events import Data, ReplayChecked, StateDiverged
from lmr.integrations.torchrun.retention import VERDICTS_KEPT_STEPS, Retention
from lmr.integrations.torchrun.worker_policy import WorkerPolicy


def retention(published: list[Data]) -> Retention:
    """Of one slot with two ranks; only what it publishes is kept."""
    return Retention(
        0,
        1,
        0,
        WorkerPolicy(schema_version=1),
        world_size=2,
        replicas=0,
        tell_active=lambda *_args, **_more: None,
        tell_all=lambda *_args, **_more: None,
        publish=published.append,
        undecided=published.append,
        vouches=None,
    )


def both(second: str = "same", *, finite: bool = True) -> dict[str, dict[str, Any]]:
    """What a vault tells of two ranks that are peers."""
    digests = {"0": "same", "1": second}
    return {rank: {"digest": one, "peers": [0, 1], "finite": finite} for rank, one in digests.items()}


def test_a_saved_steps_verdict_is_told_with_its_checkpoint() -> None:
    """However many steps are trained until an asynchronous save is complete; those of other steps are not told."""
    published: list[Data] = []
    kept = retention(published)
    kept.digests(20, both(), saved=True)
    for step in range(21, 21 + 2 * VERDICTS_KEPT_STEPS):
        kept.digests(step, both())
    assert published == []
    kept.persisted(20)
    assert [(e.step, e.verdict) for e in published if isinstance(e, ReplayChecked)] == [(20, "clean")]
    kept.persisted(20)
    assert len(published) == 1


def test_a_check_that_ends_after_the_save_is_told_at_once() -> None:
    published: list[Data] = []
    kept = retention(published)
    kept.persisted(20)
    kept.digests(20, both(finite=False), saved=True)
    assert [(e.step, e.verdict) for e in published if isinstance(e, ReplayChecked)] == [(20, "inconclusive")]


def test_a_capture_measured_before_the_script_saved_it_counts() -> None:
    """The vault tells of it again, now that it is saved."""
    published: list[Data] = []
    kept = retention(published)
    kept.digests(20, both())
    kept.digests(20, both(), saved=True)
    kept.persisted(20)
    assert [(e.step, e.verdict) for e in published if isinstance(e, ReplayChecked)] == [(20, "clean")]


def test_peers_that_differ_are_told_whether_or_not_the_step_is_kept() -> None:
    published: list[Data] = []
    kept = retention(published)
    kept.digests(20, both("other"), saved=True)
    assert [e.step for e in published if isinstance(e, StateDiverged)] == [20]
