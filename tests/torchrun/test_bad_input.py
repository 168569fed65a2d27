"""Mistakes end before training with one clear line and exit code 1, and never harm a run that is going."""

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from lmr.store import open_log

pytestmark = pytest.mark.torchrun

POLICY = "schema_version = 1\n[recovery]\npublish_ms = 100\n"


def without_id(loop):
    arguments = [a for a in loop.arguments() if not a.startswith("--rdzv-id")]
    loop.arguments = lambda: arguments


def no_folder(loop):
    (loop.folder / "file").write_text("")
    loop.conf["lm_resiliency_event_log"] = str(loop.folder / "file" / "events.db")


def foreign(loop):
    with sqlite3.connect(loop.folder / "foreign.db") as database:
        database.execute("CREATE TABLE invoices (id INTEGER)")
    database.close()
    loop.conf["lm_resiliency_event_log"] = str(loop.folder / "foreign.db")


def newer(loop):
    path = loop.folder / "newer.db"
    open_log(path).close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE lmr_schema SET version_num = '9999'")
    database.close()
    loop.conf["lm_resiliency_event_log"] = str(path)


def conf(**values):
    return lambda loop: loop.conf.update({f"lm_resiliency_{key}": value for key, value in values.items()})


def policy(text):
    def write(loop):
        (loop.folder / "policy.toml").write_text(text)

    return write


ALONE = {
    "unknown key": (conf(colour="red"), ["unknown key 'lm_resiliency_colour'", "lm_resiliency_event_log"]),
    "ill-typed key": (conf(heartbeat_timeout_ms="soon"), ["lm_resiliency_heartbeat_timeout_ms is 'soon'", "allowed"]),
    "policy is not there": (conf(worker_config="/nowhere/policy.toml"), ["/nowhere/policy.toml: cannot be read"]),
    "policy is not TOML": (policy("interval ="), ["policy.toml: not TOML"]),
    "policy without version": (policy("interval = 2\n"), ["key 'schema_version' is missing; allowed: 1"]),
    "policy of another version": (policy("schema_version = 2\n"), ["'schema_version' is 2; allowed: 1"]),
    "unknown policy key": (policy(POLICY + "colour = 1\n"), ["unknown key 'recovery.colour'", "settle_ms"]),
    "ill-typed policy key": (policy("schema_version = 1\ninterval = 'two'\n"), ["key 'interval' is 'two'", "integer"]),
    "policy out of range": (policy("schema_version = 1\ninterval = 0\n"), ["key 'interval' is 0", "greater than"]),
    "no --rdzv-id": (without_id, ["--rdzv-id is missing"]),
    "--rdzv-id that names no folder": (
        lambda loop: setattr(loop, "run_id", "team/run-1"),
        ["--rdzv-id is 'team/run-1'; allowed: no '/'"],
    ),
    "log in no folder": (no_folder, ["events.db"]),
    "log of somebody else": (foreign, ["foreign.db"]),
    "log of a newer version": (newer, ["newer.db", "newer"]),
    "log of an unknown kind": (conf(event_log="mysql://host/db"), ["allowed: sqlite:///FILE"]),
    "no store of that type": (
        lambda loop: loop.conf.update(store_type="etcd"),
        ["store_type is 'etcd'; allowed: tcp, file"],
    ),
    "unusable node id": (
        lambda loop: loop.environ.update(LM_RESILIENCY_NODE_ID="a b"),
        ["LM_RESILIENCY_NODE_ID is 'a b'"],
    ),
    "secret file is not there": (
        lambda loop: loop.environ.update(LM_RESILIENCY_SECRET_FILE="/nowhere/secret"),
        ["LM_RESILIENCY_SECRET_FILE: cannot read /nowhere/secret"],
    ),
}


def assert_refused(loop, node, words):
    """Exit code 1, one line of ours with these words, no traceback."""
    assert loop.wait_exit(node) == 1, loop.standing()
    text = loop.agents[node].text()
    ours = [line for line in text.splitlines() if line.startswith("lm_resiliency: error: ")]
    assert len(ours) == 1, text
    assert loop.last_line(node) == ours[0]
    for word in words:
        assert word in ours[0]
    assert "Traceback" not in text


@pytest.mark.parametrize("mistake", ALONE)
def test_a_mistake_of_one_agent(waiting, mistake):
    """It ends before anything is started, and says file or key, and what is allowed."""
    change, words = ALONE[mistake]
    loop = waiting(nodes="1:1", nproc=1)
    change(loop)
    loop.start("node-1", **{k: v for k, v in loop.environ.items() if k == "LM_RESILIENCY_NODE_ID"})
    assert_refused(loop, "node-1", words)
    assert not loop.starts(0)
    assert not list(loop.folder.glob("events.db*")), "a mistake left a log behind"


def test_an_agent_that_waits_for_its_host_says_so(waiting):
    """The default patience is ten minutes: a mistyped host is seen after seconds, with the reason."""
    patience = {"lm_resiliency_join_timeout_ms": "6000"}
    loop = waiting(nodes="1:1", nproc=1, endpoint="no-such-host.invalid:29400", conf=patience)
    loop.start("node-1")
    loop.wait_for(lambda: "host_awaited" in loop.agents["node-1"].text(), "the agent to say what it waits for")
    assert_refused(loop, "node-1", ["nobody listens at no-such-host.invalid:29400 within the join timeout ("])


# What differs between the agents of one run, whom it names, and the words of the refusal.
TOGETHER = {
    "twin": ("node-2", {}, {}, POLICY, ["node id 'node-2' is in use by a live agent", "LM_RESILIENCY_NODE_ID"]),
    "policy": (
        "node-8",
        {},
        {},
        "schema_version = 1\ninterval = 3\n[recovery]\nsettle_ms = 900\n",
        ["the worker policy differs", "interval", "recovery.publish_ms", "recovery.settle_ms"],
    ),
    "--nnodes": ("node-8", {"nodes": "2:5"}, {}, POLICY, ["--nnodes maximum is 5 here and 2 in the run"]),
    "--nproc-per-node": ("node-8", {"nproc": 3}, {}, POLICY, ["--nproc-per-node is 3 here and 1 in the run"]),
    "one too many": ("node-8", {}, {}, POLICY, ["would be one more than --nnodes allows (2)"]),
    "secret": ("node-8", {"environ": "secret"}, {"lm_resiliency_join_timeout_ms": "3000"}, POLICY, ["secret"]),
}


@pytest.fixture(scope="module")
def going(module_waiting):
    """A run of two nodes that trains."""
    loop = module_waiting(nodes="2:2", nproc=1, name="going")
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    return loop


@pytest.mark.parametrize("mistake", TOGETHER)
def test_an_agent_that_does_not_belong_to_the_run(going, module_waiting, tmp_path, mistake):
    """The run refuses it, or it finds no run of its own; the workers that train do not notice."""
    node, settings, keys, text, words = TOGETHER[mistake]
    settings = {"nodes": "2:2", "nproc": 1, "run_id": going.run_id, **settings}
    if settings.get("environ") == "secret":
        (tmp_path / "secret").write_text("not the secret of the run that is going")
        settings["environ"] = {"LM_RESILIENCY_SECRET_FILE": str(tmp_path / "secret")}
    stranger = module_waiting(policy=text, endpoint=going.endpoint, name=f"stranger {mistake}", conf=keys, **settings)
    before = len(going.records())
    vaults = {node: vault_of(going, node) for node in ("node-1", "node-2")}
    stranger.start(node)
    assert_refused(stranger, node, words)
    assert len(going.records()) == before, going.standing()
    assert {node: vault_of(going, node) for node in ("node-1", "node-2")} == vaults


def test_an_agent_of_another_run_says_that_this_endpoint_has_none(going, module_waiting):
    """Two runs that share an endpoint by mistake: the second one waits for a host of its own, and says so."""
    stranger = module_waiting(
        nodes="2:2",
        nproc=1,
        run_id="another",
        endpoint=going.endpoint,
        name="stranger of another run",
        conf={"lm_resiliency_join_timeout_ms": "6000"},
    )
    before = len(going.records())
    stranger.start("node-8")
    said = "no run 'another' is announced there yet"
    stranger.wait_for(lambda: said in stranger.agents["node-8"].text(), "the agent to say what it waits for")
    assert_refused(stranger, "node-8", ["no run 'another' was announced at 127.0.0.1:"])
    assert len(going.records()) == before, going.standing()


def test_the_run_that_is_going_was_not_harmed(going):
    """After all of them: it recovers from a crash as ever, and ends well."""
    os.kill(going.trainers("node-2")[1], signal.SIGKILL)
    going.wait_running(1)
    assert [p["action"] for p in going.plans()] == ["start", "restart"]
    going.finish_well("node-1", "node-2")
    assert "vault_lost" not in going.agents["node-1"].text() + going.agents["node-2"].text()


def vault_of(loop, node):
    """Pid of a node's vault."""
    return [pid for pid in loop.processes(node) if b"gemini.vault" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.parametrize("numbers", [{"nproc": 2}, {"nodes": "1:2"}], ids=["ranks", "nodes"])
def test_a_run_that_goes_on_with_other_numbers_is_refused(waiting, numbers):
    """State is not resharded: the second start names the numbers of the first, and the run stays as it was."""
    first = waiting(nodes="2:2", nproc=1, name="first", run_id="reshaped")
    first.start_all("node-1", "node-2")
    first.wait_running(0)
    for node in ("node-1", "node-2"):
        first.kill_machine(node)
    again = waiting(**{"nodes": "2:2", "nproc": 1, "run_id": "reshaped", **numbers}, name="again")
    again.conf["lm_resiliency_restart_context_path"] = str(first.folder / "context.json")
    again.start("node-1")
    assert again.wait_exit("node-1") == 1, again.standing()
    assert "goes on with 2 nodes of 1 ranks, not with" in again.last_line("node-1"), again.standing()
    assert "Traceback" not in again.agents["node-1"].text(), again.standing()
    assert [record.event.type for record in first.records()][-1] != "run_reopened"
