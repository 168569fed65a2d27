"""Campaign files: what is accepted, what is refused and in which words; what is drawn is drawn again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmr.integrations.faults.campaign import load_campaign
from lmr.integrations.faults.effects import EFFECTS
from lmr.integrations.faults.errors import CampaignInvalid
from lmr.integrations.faults.marks import Marks, Strike
from lmr.integrations.operate.main import main as lmr

HEAD = "schema_version = 1\nseed = 7\n[[faults]]\n"


def campaign(tmp_path: Path, body: str, head: str = HEAD):
    path = tmp_path / "campaign.toml"
    path.write_text(head + body)
    return load_campaign(path)


EXTRA = {
    "reorder": 'target = "batch"',
    "delay": "ms = 5",
    "timeout": "ms = 5",
    "network_partition": 'node = "node-2"',
    "config_drift": 'node = "node-2"\nenviron = { NCCL_ALGO = "Ring" }',
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_each_effect_can_be_asked_for(tmp_path, effect):
    where = "" if effect == "config_drift" else "rank = 3\nstep = 40\n"
    found = campaign(tmp_path, f'effect = "{effect}"\n{where}{EXTRA.get(effect, "")}\n')
    assert [fault.effect for fault in found.faults] == [effect]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('effect = "tensor_corruption"\nrank = 3', "key 'faults[0].step' is missing"),
        ('effect = "tensor_corruption"\nstep = 0', "faults[0]: step counts from 1"),
        ('effect = "tensor_corruption"\nstep = 4\nbits = 3', "unknown key 'faults[0].bits'; allowed: "),
        ('effect = "tensor_corruption"\nstep = 4\nbit = 64', "key 'faults[0].bit' is 64; allowed: less than"),
        (
            'effect = "bit_rot"\nstep = 4',
            "key 'faults[0].effect' is 'bit_rot'; allowed: tensor_corruption, ",
        ),
        ("step = 4", "faults[0]: key 'effect' is missing; allowed: tensor_corruption"),
        ('effect = "drop"\nstep = 4\ntarget = "packet"', "key 'faults[0].target' is 'packet'; allowed: 'update'"),
        ('effect = "reorder"\nstep = 4', "faults[0]: reorder needs target"),
        ('effect = "network_partition"\nstep = 4', "key 'faults[0].node' is missing"),
        ('effect = "hang"\nstep = "soon"', "key 'faults[0].step' is 'soon'; allowed: a valid integer"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path, body, said):
    with pytest.raises(CampaignInvalid) as caught:
        campaign(tmp_path, body)
    assert str(caught.value).startswith(f"{tmp_path / 'campaign.toml'}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("head", ["", "schema_version = 2\n[[faults]]\n", "schema_version = \n"])
def test_a_file_of_another_kind_is_refused(tmp_path, head):
    with pytest.raises(CampaignInvalid):
        campaign(tmp_path, 'effect = "hang"\nstep = 4', head)


def test_the_command_says_it_in_one_line_and_starts_nothing(tmp_path, capsys):
    path = tmp_path / "campaign.toml"
    path.write_text(HEAD + 'effect = "bit_rot"\nstep = 4')
    assert lmr(["inject", str(path), "--", "touch", str(tmp_path / "started")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "started").exists()


def test_what_is_left_open_comes_from_the_seed(tmp_path):
    body = 'effect = "hang"\nstep = [10, 90]\n'
    one, again = campaign(tmp_path, body), campaign(tmp_path, body)
    other = campaign(tmp_path, body, HEAD.replace("7", "8"))
    assert one.place(0, 64) == again.place(0, 64) != other.place(0, 64)
    rank, step = one.place(0, 64)
    assert 0 <= rank < 64
    assert 10 <= step <= 90


def test_a_fault_strikes_as_often_as_it_may_and_no_more(tmp_path):
    marks = Marks(tmp_path / "marks")
    strike = Strike(0, "hang", 3, 40, None, 1234, 5)
    assert [marks.claim(strike, times=2) is not None for _ in range(3)] == [True, True, False]
    assert list(marks.strikes().values()) == [strike, strike]


def test_the_part_that_runs_in_trainers_cannot_be_imported_in_production():
    environ = {key: value for key, value in os.environ.items() if not key.startswith("LMR_")}
    code = "import lmr.integrations.faults.inside.attach"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "for processes started by `lmr inject` only" in done.stderr


def test_nothing_that_production_runs_names_this_package():
    """Only the command, and the demo that shows a fault, know of it."""
    root = Path(__file__).parents[2]
    files = [
        path for room in ("engine", "store", "replay_tool", "integrations") for path in (root / room).rglob("*.py")
    ]
    naming = {path.relative_to(root).parts[:2] for path in files if "integrations.faults" in path.read_text()}
    assert naming <= {("integrations", "faults"), ("integrations", "operate")}


def test_inject_hands_on_the_exit_code_and_what_was_shadowed_still_runs(tmp_path):
    """A `sitecustomize` of the user's runs in processes started by `lmr inject`."""
    (tmp_path / "campaign.toml").write_text(HEAD + 'effect = "hang"\nstep = 4')
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['SEEN'] = 'yes'")
    lmr_command = Path(sys.executable).with_name("lmr")
    code = "import os, sys; sys.exit(7 if os.environ.get('SEEN') else 1)"
    command = [lmr_command, "inject", tmp_path / "campaign.toml", "--", sys.executable, "-c", code]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.run(command, env=environ, check=False, timeout=60).returncode == 7
