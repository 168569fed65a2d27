"""Which node is said to be set up differently."""

from __future__ import annotations

from pathlib import Path

from lmr.integrations.scout.detector_policy import DriftPolicy
from lmr.integrations.scout.drift import Drift, DriftDetector, configuration

SAME = {"python": "a", "package.torch": "b"}


def test_the_minority_is_named_with_its_keys() -> None:
    found = DriftDetector(DriftPolicy())
    assert found.tell("one", SAME) == []
    assert found.tell("two", SAME) == []
    assert found.tell("three", {"python": "x", "package.torch": "b"}) == [Drift("three", ("python",))]


def test_of_two_the_later_is_named() -> None:
    found = DriftDetector(DriftPolicy())
    found.tell("one", SAME)
    assert found.tell("two", {**SAME, "env.NCCL_ALGO": "c"}) == [Drift("two", ("env.NCCL_ALGO",))]


def test_the_first_node_is_named_once_a_majority_disagrees_with_it() -> None:
    found = DriftDetector(DriftPolicy())
    found.tell("odd", {"python": "x"})
    assert found.tell("two", {"python": "a"}) == [Drift("two", ("python",))]
    assert found.tell("three", {"python": "a"}) == [Drift("odd", ("python",))]


def test_the_same_drift_is_said_once_and_a_repaired_node_may_drift_again() -> None:
    found = DriftDetector(DriftPolicy())
    found.tell("one", SAME)
    assert found.tell("two", {**SAME, "python": "x"}) != []
    assert found.tell("two", {**SAME, "python": "x"}) == []
    assert found.tell("two", SAME) == []
    assert found.tell("two", {**SAME, "python": "x"}) == [Drift("two", ("python",))]


def test_ignored_keys_and_a_disabled_detector_say_nothing() -> None:
    for policy in (DriftPolicy(ignored_keys=("python",)), DriftPolicy(enabled=False)):
        found = DriftDetector(policy)
        found.tell("one", SAME)
        assert found.tell("two", {**SAME, "python": "x"}) == []


def test_a_configuration_has_versions_code_and_the_variables_that_matter(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("a = 1")
    environ = {"NCCL_ALGO": "Ring", "HOME": "/root", "TORCHELASTIC_RUN_ID": "r", "CUDA_VISIBLE_DEVICES": "0"}
    known = configuration(script, environ)
    assert {"python", "package.torch", "code", "env.NCCL_ALGO"} <= known.keys()
    assert not {"env.HOME", "env.TORCHELASTIC_RUN_ID", "env.CUDA_VISIBLE_DEVICES"} & known.keys()
    script.write_text("a = 2")
    changed = configuration(script, environ)
    assert {key for key in known if known[key] != changed[key]} == {"code"}
