"""Modules that no optimizer updates: which of them are state."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lmr.integrations.frameworks.pytorch.bystanders import Bystanders


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2)


class Statistics(nn.Module):
    """Of a shape of its own in each test, so that what other tests left to the garbage collector is not alike."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def policy() -> Policy:
    return Policy()


@pytest.fixture
def bystanders(policy: Policy, said: list[str]) -> Bystanders:
    trained = frozenset(id(p) for p in policy.parameters())
    return Bystanders(lambda: trained, lambda what, why: said.append(f"{what}: {why}"))


def kinds(found: dict[str, nn.Module]) -> list[str]:
    return [name.partition("-")[0] for name in found]


def test_what_changes_is_state_from_then_on_and_what_stays_is_not(policy, bystanders, said) -> None:
    target, statistics, teacher = copy.deepcopy(policy), Statistics(101), nn.Linear(103, 1)
    bystanders.look()
    assert kinds(bystanders.changed()) == []
    target.body.weight.data.mul_(0.5)  # not counted by torch
    assert kinds(bystanders.changed()) == ["Policy"]
    statistics.count += 1
    for _ in range(3):
        found = bystanders.changed()
        assert kinds(found) == ["Policy", "Statistics"]
    assert target in found.values()
    assert teacher not in found.values()
    assert policy not in found.values()
    assert said == []


def test_one_that_is_made_later_is_seen(bystanders) -> None:
    bystanders.look()
    late = Statistics(107)
    bystanders.changed()
    late.mean += 1
    assert kinds(bystanders.changed()) == ["Statistics"]


def test_of_several_alike_none_is_state_and_that_is_said(bystanders, said) -> None:
    alike = [Statistics(109) for _ in range(2)]
    bystanders.look()
    alike[1].mean += 1
    assert kinds(bystanders.changed()) == []
    assert said == ["Statistics, which no optimizer updates: several modules are alike"]


def test_a_restarted_script_finds_them_by_kind_and_shape(bystanders) -> None:
    statistics = Statistics(113)
    bystanders.look()
    statistics.mean += 1
    (name,) = bystanders.changed()
    again = Bystanders(lambda: (), lambda what, why: pytest.fail(what))
    assert again.expected([name, "Gone-000"]) == {name: statistics}
    assert list(again.changed()) == [name]


def test_a_module_that_knows_no_shapes_yet_is_left_alone(bystanders) -> None:
    lazy = nn.LazyLinear(3)
    bystanders.look()
    assert bystanders.changed() == {}
    assert isinstance(lazy.weight, nn.UninitializedParameter)


def test_a_module_whose_writes_nobody_counts_is_left_alone(bystanders) -> None:
    with torch.inference_mode():
        uncounted = Statistics(127)
    bystanders.look()
    assert bystanders.changed() == {}
    assert uncounted.mean.is_inference()


def test_a_module_that_was_given_another_tensor_has_changed(bystanders) -> None:
    statistics = Statistics(131)
    bystanders.look()
    statistics.mean = torch.ones(131)
    assert kinds(bystanders.changed()) == ["Statistics"]
