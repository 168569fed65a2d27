"""Messages between processes of a node: JSON as `json` writes and reads it, and descriptors."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lmr.integrations.torchrun import local_message, local_socket
from lmr.integrations.torchrun.supervisor import _signal_name

HEAVY = {"typing", "enum", "re", "json", "socket", "signal", "contextlib", "collections", "dataclasses", "pathlib"}


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"kind": "here", "until_s": 12.5, "none": None, "yes": True, "no": False, "big": 2**70, "small": -1},
        {"argv": ["python", "-u", "a b.py"], "environ": {"A": 'quotes " and \\', "LINE": "one\ntwo\0three"}},
        {"not utf-8": os.fsdecode(b"/tmp/\xff"), "umlaut": "\u00fc", "far": "\U0001f600"},
        {"nested": [[{"deep": [1, [2, [3]]]}], ()]},
        {"numbers": [math.inf, -math.inf, 1e300, 5e-324, 0.1]},
        {1: "a key that is a number", None: "and one that is none"},
    ],
)
def test_a_message_is_written_and_read_as_json_does(value, pair):
    local_message.send(pair[0], value)
    assert pair[1].recv(1 << 20) == json.dumps(value, separators=(",", ":")).encode()
    local_message.send(pair[0], value)
    assert local_message.receive(pair[1]) == (json.loads(json.dumps(value)), [])


NO_MESSAGES = [b"{", b"{} {}", b"[]", b"1", b"nul", b'{"a":}', b'{"a":1,}', b"\xff\xfe", b'{"a":"\n"}', b" {}", b"\0"]
TOO_MUCH = [b'{"a":' * 20_000, b'{"a":' + b"9" * 5_000 + b"}"]
"""For the parser's stack, and more digits than Python reads where it has a limit."""


@pytest.mark.parametrize("body", [*NO_MESSAGES, *TOO_MUCH[: 2 if hasattr(sys, "get_int_max_str_digits") else 1]])
def test_what_is_no_message_is_refused(body, pair):
    local_message.make_room(pair[0])
    pair[0].send(body)
    with pytest.raises(local_message.LocalSocketError, match="not one JSON object"):
        local_message.receive(pair[1])


def test_what_json_cannot_say_is_not_sent(pair):
    with pytest.raises(TypeError):
        local_message.send(pair[0], {"bytes": b""})
    with pytest.raises(local_message.LocalSocketError, match="too large"):
        local_message.send(pair[0], {"kind": "hello", "text": "x" * local_message.MESSAGE_MAX_BYTES})
    pair[0].close()
    assert local_message.receive(pair[1]) is None


def test_descriptors_come_along(pair):
    read, write = os.pipe()
    local_message.send(pair[0], {"kind": "page"}, [read, write])
    message, (their_read, their_write) = local_message.receive(pair[1])
    assert message == {"kind": "page"}
    os.write(write, b"here")
    assert os.read(their_read, 10) == b"here"
    for descriptor in (read, write, their_read, their_write):
        os.close(descriptor)


@pytest.mark.parametrize(("body", "count"), [(b"", 1), (b"{}", 20), (b"[]", 2)])
def test_descriptors_of_what_is_refused_are_closed(pair, body, count):
    read, write = os.pipe()
    before = os.listdir("/proc/self/fd")
    socket.send_fds(pair[0], [body], [read] * count)
    with pytest.raises(local_message.LocalSocketError):
        local_message.receive(pair[1])
    assert os.listdir("/proc/self/fd") == before
    os.close(read)
    os.close(write)


def test_descriptors_that_came_do_not_outlive_an_exec(pair):
    read, write = os.pipe()
    local_message.send(pair[0], {}, [read])
    _, (came,) = local_message.receive(pair[1])
    assert not os.get_inheritable(came)
    for descriptor in (read, write, came):
        os.close(descriptor)


@pytest.mark.parametrize(
    "other",
    [
        "make_scanner = None",
        "def make_scanner(context): context.array_hook",
        "make_scanner = lambda context: lambda text, start: (text, len(text))",
        "del make_encoder",
    ],
)
def test_an_interpreter_of_other_parts_uses_json(other):
    """Python's own parts of `json` are its own affair: a version may change them."""
    code = (
        "import sys, types, _json\n"
        "parts = types.ModuleType('_json'); vars(parts).update(vars(_json))\n"
        f"exec({other!r}, vars(parts))\n"
        "import json; sys.modules['_json'] = parts\n"
        "from lmr.integrations.torchrun import local_message\n"
        "text = local_message._encoded({'a': [1, None]}); print(text, local_message._decoded(text))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "{\"a\":[1,null]} {'a': [1, None]}\n", ran.stderr


@pytest.mark.parametrize("connect", [local_message.connect, local_socket.connect])
def test_both_sides_of_a_name(connect):
    name = f"lmr-test-{os.getpid()}"
    with local_socket.listen(name) as listener:
        sock = connect(name)
        other, _ = listener.accept()
        local_message.send(sock, {"kind": "hello"})
        assert local_message.receive(other) == ({"kind": "hello"}, [])
        assert local_message.check_peer(other) == os.getpid()
        other.close()
        assert local_message.receive(sock) is None
        sock.close()
    with pytest.raises(ConnectionRefusedError):
        connect(name)


def test_a_supervisor_loads_next_to_nothing():
    """It starts with every worker, before the trainer: what it imports is added to each restart, on every rank."""
    code = "import sys; before = set(sys.modules); import lmr.integrations.torchrun.supervisor; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-S", "-c", _with_path(code)], capture_output=True, text=True, check=True)
    assert not HEAVY & set(ran.stdout.split())


def _with_path(code):
    import lmr

    return f"import sys; sys.path.append({str(Path(lmr.__path__[0]).parent)!r}); {code}"


def test_signals_have_the_names_that_python_gives_them():
    assert {number: _signal_name(number) for number in signal.Signals} == {n: n.name for n in signal.Signals}
    assert _signal_name(40) == "SIG40"
