"""Renumbering: which recorded fact a replayed one was, however much was left out or decided between."""

from random import Random

from lmr.replay_tool.counterfactual import Origin


def test_every_new_seq_finds_what_it_was_recorded_as() -> None:
    random = Random(1)
    for _ in range(200):
        recorded, told = 0, Origin()
        expected = []
        for _ in range(random.randrange(1, 40)):
            recorded += random.choice((1, 1, 1, 1, 3))
            one = recorded if random.randrange(4) else 0
            told.append(one)
            expected.append(one)
        assert [told.of(seq) for seq in range(1, told.length + 1)] == expected
        assert (told.of(0), told.of(told.length + 1)) == (0, 0)


def test_a_copy_goes_its_own_way() -> None:
    told = Origin()
    told.append(5)
    other = told.copy()
    other.append(9)
    told.append(6)
    assert (told.of(2), other.of(2)) == (6, 9)


def test_what_it_keeps_grows_with_the_gaps_not_with_the_log() -> None:
    told = Origin()
    for seq in range(1, 10_001):
        told.append(seq if seq % 1_000 else 0)
    assert len(told._first) == 20
