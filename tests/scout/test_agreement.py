"""What is said of a captured step, by what the vaults say of its ranks."""

from __future__ import annotations

from lmr.integrations.scout.agreement import FINITE_RECIPE, RECIPE, Agreement, Told, Verdict

WORLD = (0, 1, 2, 3)


def told(digests: str, peers: tuple[int, ...] = WORLD, odd: tuple[int, ...] = ()) -> dict[int, Told]:
    return {rank: Told(digest, peers, rank not in odd) for rank, digest in enumerate(digests)}


def take(told: dict[int, Told], finite_checked: bool = True) -> list[Verdict]:
    """Rank by rank, as from one vault each."""
    agreement = Agreement(len(told), finite_checked=finite_checked)
    return [verdict for rank, one in told.items() for verdict in agreement.take(7, {rank: one})]


def test_equal_and_finite_is_clean() -> None:
    assert take(told("aaaa")) == [Verdict(7, "clean", (), WORLD, RECIPE)]


def test_the_minority_is_named() -> None:
    assert take(told("aaba")) == [Verdict(7, "corrupt", (2,), WORLD, RECIPE)]


def test_without_a_majority_nobody_is_named() -> None:
    assert take(told("aabb")) == [Verdict(7, "corrupt", (), WORLD, RECIPE)]


def test_equal_but_not_finite_is_not_clean() -> None:
    assert take(told("aaaa", odd=WORLD)) == [Verdict(7, "inconclusive", WORLD, WORLD, FINITE_RECIPE)]


def test_one_rank_that_is_not_finite_spoils_the_step() -> None:
    assert take(told("abcd", peers=(), odd=(3,))) == [Verdict(7, "inconclusive", (3,), WORLD, FINITE_RECIPE)]


def test_a_group_is_not_clean_before_every_rank_has_spoken() -> None:
    agreement = Agreement(4, finite_checked=True)
    first = {rank: Told("a", (0, 1), True) for rank in (0, 1)}
    second = {rank: Told("b", (2, 3), True) for rank in (2, 3)}
    assert agreement.take(7, first) == []
    assert {verdict.peers for verdict in agreement.take(7, second)} == {(0, 1), (2, 3)}
    assert agreement.take(7, first) == []


def test_state_without_peers_is_checked_for_being_finite() -> None:
    assert take(told("abcd", peers=())) == [Verdict(7, "clean", (), WORLD, FINITE_RECIPE)]


def test_nothing_is_clean_that_nobody_checked() -> None:
    assert take(told("abcd", peers=()), finite_checked=False) == []
