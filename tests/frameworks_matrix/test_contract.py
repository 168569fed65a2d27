"""What holds for every adapter, without any framework: detection, versions, claims, attaching, parts of tensors."""

import importlib
import json
import mmap
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
import matrix
from modes import MODES

from lmr.integrations.frameworks import adapter, import_hook, lightning, registry
from lmr.integrations.frameworks.adapter import Framework, FrameworkConflict
from lmr.integrations.frameworks.pytorch import hooks
from lmr.integrations.frameworks.pytorch.objects import Created, Objects
from lmr.integrations.frameworks.pytorch.session import Session
from lmr.integrations.frameworks.pytorch.steps import Steps
from lmr.integrations.gemini.capture import Collection, ShardReader, ShardWriter
from lmr.integrations.gemini.errors import ShardMismatch


class One(Framework):
    name = "One"

    def models(self):
        return []


class Other(One):
    name = "Other"


class Claims:
    """As much of a session as claiming needs."""

    claim = Session.claim

    def __init__(self):
        self.objects = Objects()


def test_two_frameworks_in_one_process_are_a_clear_error():
    session = Claims()
    session.claim(One())
    session.claim(One())
    with pytest.raises(FrameworkConflict, match="One already trains in this process, Other"):
        session.claim(Other())


def test_a_conflict_reaches_the_script_and_other_faults_do_not():
    faults = []
    session = types.SimpleNamespace(fault=lambda where, error: faults.append((where, str(error))))

    def conflict():
        raise FrameworkConflict("One", "Other")

    def broken():
        raise KeyError("gone")

    with pytest.raises(FrameworkConflict):
        adapter.guarded(session, "initialize", conflict)
    adapter.guarded(session, "initialize", broken)
    assert faults == [("initialize", "'gone'")]


@pytest.mark.parametrize("support", registry.SUPPORT.values(), ids=lambda s: s.name)
def test_versions_are_judged(support):
    assert registry.judge(support, support.newest) is None
    newer = f"{support.name} 99.0 is newer than {support.newest}, the newest tested; tested: {support.oldest}"
    assert registry.judge(support, "99.0").startswith(newer)
    assert not registry.is_too_old(support, "99.0.dev1+cpu")
    assert "older than" in registry.judge(support, "0.1")
    assert registry.is_too_old(support, "0.1")


def test_detection_imports_no_framework_and_no_torch():
    code = (
        "import sys; from lmr.integrations.frameworks import registry, import_hook; registry.installed();"
        "import_hook.install(); print(sorted({'torch', 'deepspeed', 'megatron', 'torchtitan'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"


def test_a_script_without_a_framework_pays_for_none():
    """Torch is imported through the hook: no other adapter is loaded, and no import is looked at after that."""
    code = (
        "import sys; from lmr.integrations.frameworks import registry, import_hook; import_hook.install();"
        "import torch; print(type(torch.__loader__).__name__, *set(registry.ADAPTERS.values()) & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert found == "SourceFileLoader lmr.integrations.frameworks.pytorch\n"


def test_adapters_of_others_are_named_in_the_environment(monkeypatch):
    monkeypatch.setenv(registry.FURTHER, "spark.trainer=spark_lmr, deepspeed=mine")
    assert registry.adapters()["spark.trainer"] == "spark_lmr"
    assert registry.adapters()["deepspeed"] == "mine"
    monkeypatch.setenv(registry.FURTHER, "spark.trainer")
    with pytest.raises(ValueError, match="not of the form"):
        registry.adapters()


def test_an_adapter_attaches_once_its_module_has_run_and_python_m_still_works(tmp_path):
    (tmp_path / "spark_x.py").write_text("TRAINER = 1\nif __name__ == '__main__':\n    print('ran')\n")
    (tmp_path / "spark_adapter.py").write_text(
        "import sys\ndef attach():\n    print('attached to', sys.modules['spark_x'].TRAINER)\n"
    )
    code = (
        "import sys, runpy; sys.path.insert(0, sys.argv[1]);"
        "from lmr.integrations.frameworks import import_hook; import_hook.install();"
    )
    environ = {registry.FURTHER: "spark_x=spark_adapter", "PATH": ""}

    def run(what):
        command = [sys.executable, "-c", code + what, str(tmp_path)]
        return subprocess.run(command, capture_output=True, check=True, text=True, env=environ).stdout

    assert run("import spark_x; print(type(spark_x.__loader__).__name__)") == "attached to 1\nSourceFileLoader\n"
    assert run("runpy.run_module('spark_x', run_name='__main__')") == "ran\n"


def test_an_adapter_that_does_not_fit_its_framework_leaves_nothing_half_protected(monkeypatch, capsys):
    """A version whose second hook is gone: the first one is taken off again, and the output names the tested range."""
    refused = []
    session = types.SimpleNamespace(mine=True, refuse_framework=refused.append)
    monkeypatch.setattr("lmr.integrations.frameworks.pytorch._session", session)
    monkeypatch.setattr(registry, "installed", lambda: {"DeepSpeed": "99.0"})

    class Engine:
        def initialize(self):
            return "as it was"

    initialize = Engine.initialize

    def attach():
        adapter.after(Engine, "initialize", lambda *_: None)
        assert Engine.initialize is not initialize
        adapter.after(Engine, "_take_model_step", lambda *_: None)

    monkeypatch.setitem(sys.modules, "newer_adapter", types.SimpleNamespace(attach=attach))
    import_hook._attach("deepspeed", "newer_adapter")
    assert Engine.initialize is initialize
    assert "could not attach, this worker runs unprotected" in capsys.readouterr().err
    assert len(refused) == 1
    assert refused[0].endswith("has no attribute '_take_model_step'\"); installed: DeepSpeed 99.0; tested: 0.19.8")


def test_an_adapter_that_does_not_exist_is_said(monkeypatch, capsys):
    monkeypatch.setattr("lmr.integrations.frameworks.pytorch._session", None)
    import_hook._attach("spark", "no.such.adapter")
    assert "no.such.adapter could not attach" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("length", "loaders", "said"),
    [(10, 1, []), (None, 1, ["a batch ahead"]), (10, 2, ["several loaders"])],
    ids=["exact", "no length", "two"],
)
def test_where_lightning_loses_its_place_is_said(length, loaders, said):
    told = []
    session = types.SimpleNamespace(degraded=lambda what, why: told.append((what, why)))
    combined = types.SimpleNamespace(flattened=[None] * loaders)
    fetcher = types.SimpleNamespace(length=length, combined_loader=combined)
    lightning._say_where_the_place_is_not_exact(session, fetcher)
    assert [what for what, _ in told] == ["position"] * len(said)
    assert all(part in why for part, (_, why) in zip(said, told, strict=True))


def test_a_loader_made_anew_takes_the_place_of_the_one_before():
    created = Created()
    first, unrelated, second = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    number = created.note(first)
    created.note(unrelated)
    created.succeed(number)
    assert created.note(second) == number
    assert created.note(nn.Linear(1, 1)) == 2
    assert dict(created.alive())[number] is second
    assert created.number(first) is None


def test_optimizer_steps_do_not_count_under_a_framework():
    created, optimizer = Created(), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)
    created.note(optimizer)
    steps = Steps(created, 3)
    steps.began(optimizer)
    assert not steps.ended(optimizer, counts=False)
    steps.began(optimizer)
    assert steps.ended(optimizer)
    assert steps.completed == 4


def test_the_optimizer_whose_steps_count_may_be_named_by_what_was_captured():
    """Two that step in turn: a restarted script may begin with the other one."""
    created, parameter = Created(), nn.Parameter(torch.zeros(1))
    first, second = (torch.optim.SGD([parameter], lr=1) for _ in range(2))
    created.note(first)
    created.note(second)
    steps = Steps(created, 3)
    steps.primary = 0
    assert [steps.ended(one) for one in (second, first, second, first)] == [False, True, False, True]
    assert steps.completed == 5


def test_what_a_framework_says_keys_the_optimizer_is_what_continuity_watches():
    """ZeRO 3 has its flat partitions in the groups for the length of a step only."""

    class Flat(One):
        def parameters_of(self, optimizer):
            return [[partition]]

    partition, objects = torch.zeros(3), Objects()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)
    optimizer.state[partition] = {"momentum": torch.ones(3)}
    objects.optimizers.note(optimizer)
    objects.framework = Flat()
    watched = dict(objects.optimized_state())
    assert watched.keys() == {(0, 0, 0), (0, 0, 0, "momentum")}
    assert watched[0, 0, 0] is partition


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_of_a_dtensor_the_local_part_travels_and_returns_as_a_dtensor(alone):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    whole = torch.arange(12.0).reshape(4, 3)
    live = distribute_tensor(whole, mesh, [Shard(0)])
    collection, writer = Collection(), ShardWriter(0, require_finite=False)
    collection.add("w", live, "own")
    tree = b'{"parts": ["w"]}'
    meta = writer.plan(collection, tree)
    memory = mmap.mmap(-1, meta.total_bytes)
    writer.write(0, memory, collection, tree, meta)
    reader = ShardReader(memory, meta)

    fresh = reader.fresh("w", like=distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)]))
    assert isinstance(fresh, DTensor)
    assert torch.equal(fresh.to_local(), whole)
    target = distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)])
    reader.copy_into("w", target)
    assert torch.equal(target.full_tensor(), whole)
    with pytest.raises(ShardMismatch):
        reader.fresh("w", like=torch.zeros(4, 3))


@pytest.mark.parametrize("where", ["checkpoint", "a-file/checkpoint"])
def test_what_lies_beside_a_checkpoint_is_whole_or_said_to_be_missing(tmp_path, where):
    """A full or wrong disk ends neither the script nor the captures in memory."""
    (tmp_path / "a-file").write_text("")
    said = []
    session = types.SimpleNamespace(protects_durably=True, degraded=lambda what, why: said.append(what))
    adapter.save_beside(session, tmp_path / where)
    assert (tmp_path / where / "lm_resiliency" / ".metadata").exists() is not bool(said)
    assert said == ([] if where == "checkpoint" else ["durable checkpoints"])


def test_where_durable_checkpoints_are_turned_off_nothing_lies_beside(tmp_path):
    adapter.save_beside(types.SimpleNamespace(protects_durably=False), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_table_in_the_documentation_has_a_row_for_each_mode_as_the_run_makes_it():
    document = matrix.DOCUMENT.read_text()
    rows = matrix.parse(document)
    assert matrix.render(rows) in document
    assert [row[1] for row in rows] == [mode.name for mode in MODES.values()]
    newest = {support.name: support.newest for support in registry.SUPPORT.values()}
    for row, mode in zip(rows, MODES.values(), strict=True):
        if mode.framework in newest:
            assert row[0] == f"{mode.framework} {newest[mode.framework]}"
        assert row[4], f"{mode.name}: a killed rank was not shown"


def test_every_mode_is_run_by_a_test():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in MODES if f'"{name}",' not in tests] == []


def test_a_record_that_lacks_a_mode_makes_no_table(tmp_path):
    record = tmp_path / "matrix.jsonl"
    lines = [{"mode": name, "shown": {"rank killed": "yes"}, "version": "1"} for name in MODES]
    record.write_text("\n".join(map(json.dumps, lines)))
    assert matrix.parse(matrix.render(matrix.rows(record))) == matrix.rows(record)
    record.write_text("\n".join(map(json.dumps, lines[1:])))
    with pytest.raises(matrix.NotShown, match=next(iter(MODES))):
        matrix.rows(record)


def test_every_registered_adapter_offers_attach_and_its_hooks_exist():
    for module in registry.ADAPTERS.values():
        assert callable(importlib.import_module(module).attach)
    assert callable(hooks.install)
    assert callable(import_hook.install)
