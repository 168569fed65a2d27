"""A retained step replaces the one before only when the checks that come after its capture have had their say."""

from __future__ import annotations

from lmr.integrations.torchrun.pacer import VOUCH_WAIT_MS, Pacer


def pinned(sound: set[int]) -> Pacer:
    """Step 10 is certified; the next one is pinned, captured, replicated and found clean."""
    pacer = Pacer(
        slots=1, interval=1, replicas=1, checked=True, publish_ms=100, restored=0, vouches=lambda step: step in sound
    )
    pacer.certified = pacer.complete = 10
    step = pacer.progress(10, 1_000)
    assert step == 12
    assert not pacer.captured(0, step)
    assert not pacer.replicated(0, step, "node-2")
    return pacer


def test_a_step_that_checks_vouch_for_replaces_the_one_before_at_once() -> None:
    pacer = pinned({12})
    assert pacer.verdict(12, "clean")
    assert pacer.retained() == [12]


def test_until_then_the_one_before_is_kept() -> None:
    sound: set[int] = set()
    pacer = pinned(sound)
    assert not pacer.verdict(12, "clean")
    assert not pacer.look(2_000)
    assert pacer.retained() == [10, 12]
    sound.add(12)
    assert pacer.look(2_250)
    assert pacer.retained() == [12]


def test_checks_that_never_speak_are_not_waited_for_for_ever() -> None:
    pacer = pinned(set())
    assert not pacer.verdict(12, "clean")
    assert not pacer.look(2_000)
    assert not pacer.look(2_000 + VOUCH_WAIT_MS)
    pacer.look(2_001 + VOUCH_WAIT_MS)
    assert pacer.look(2_250 + VOUCH_WAIT_MS)
    assert pacer.retained() == [12]


def test_a_pin_that_every_slot_has_captured_is_not_given_up_while_its_replicas_travel() -> None:
    pacer = Pacer(slots=1, interval=1, replicas=1, checked=False, publish_ms=100, restored=0)
    step = pacer.progress(10, 1_000)
    assert step is not None
    pacer.captured(0, step)
    assert pacer.progress(40, 20_000) is None
    assert pacer.pinned == step
    assert pacer.replicated(0, step, "node-2")


def test_what_the_run_goes_back_behind_replaces_nothing_however_long_it_waits() -> None:
    """A hold waits for a standby for minutes, and the replicas of a bad step agree with each other."""
    named = False
    pacer = pinned(set())
    pacer.condemned = lambda: named
    named = True
    assert not pacer.verdict(12, "clean")
    for now_ms in range(2_000, 100_000, 250):
        assert not pacer.look(now_ms)
    assert 10 in pacer.retained()
