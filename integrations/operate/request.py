"""Say something to a running job, as a recorded operator fact: who, what and why.

The request goes to the decider of the run, which appends it to the event log; the engine decides on it like on any
other fact. One request id acts once, however often it is sent. Exit code 1: it was refused, or recorded though nothing
follows from it, and the last line says why.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
import sys
import uuid
from pathlib import Path
from typing import Any

from lmr.engine import State, apply
from lmr.engine.events import OperatorRequested
from lmr.integrations.operate.consequence import also, nothing_follows
from lmr.integrations.operate.runs import RunNotChosen, chosen_run
from lmr.integrations.wire import Channel, WireError
from lmr.store import StoreError, open_log

WAIT_S = 10.0
DECIDER_FILE = "decider.json"


class DeciderNotFound(Exception):
    """There is nobody to take the request, or we cannot speak to it; the message says where was looked."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr cordon`, `uncordon`, `replace`, `restart`, `halt` and `resume`."""
    verb = parser.prog.rsplit(" ", 1)[1]
    if verb in ("cordon", "uncordon", "replace"):
        parser.add_argument("node", metavar="NODE")
    parser.add_argument(
        "--why", required=True, type=_reason, help="goes into the log; say it for whoever reads it in a year"
    )
    parser.add_argument("--log", required=True, help="the run's event log: SQLAlchemy URL or SQLite path")
    parser.add_argument("--run", dest="run_id", help="the run's id, when the log holds several")
    parser.add_argument("--by", default=getpass.getuser(), help="who asks (default: %(default)s)")
    parser.add_argument("--request", default=uuid.uuid4().hex[:12], help="request id (default: a fresh one)")


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; allowed: a reason in words")
    return text


def run(args: argparse.Namespace) -> int:
    """Send one request, wait until it is recorded, and say so when nothing follows from it."""
    try:
        run_id, host, port, secret = find_decider(args.log, args.run_id)
        answer = _ask(host, port, secret, {"kind": "hello", "role": "operator", "run": run_id, **_fact(args)})
    except (StoreError, DeciderNotFound, RunNotChosen) as error:
        print(f"lmr {args.verb}: {error}", file=sys.stderr)
        return 2
    except (OSError, WireError) as error:
        print(f"lmr {args.verb}: the decider did not answer: {error}; {_hint(error, args.request)}", file=sys.stderr)
        return 2
    if answer["kind"] != "recorded":
        print(f"lmr {args.verb}: refused: {answer['reason']}", file=sys.stderr)
        return 1
    print(f"recorded: request {args.request}; see lmr-replay timeline {args.log}")
    try:
        in_vain, besides = _consequence(args, run_id)
    except StoreError as error:
        print(f"lmr {args.verb}: what follows from it cannot be read: {error}", file=sys.stderr)
        return 0
    if in_vain is not None:
        print(f"lmr {args.verb}: nothing follows from it: {in_vain}", file=sys.stderr)
        return 1
    if besides is not None:
        print(f"lmr {args.verb}: {besides}", file=sys.stderr)
    return 0


def _hint(error: Exception, request: str) -> str:
    hung_up = isinstance(error, (ConnectionError, WireError)) and not isinstance(error, ConnectionRefusedError)
    if hung_up:
        return "it hangs up on another secret: is LM_RESILIENCY_SECRET_FILE the run's?"
    return f"the same with --request {request} acts once, even if this was recorded"


def _consequence(args: argparse.Namespace, run_id: str) -> tuple[str | None, str | None]:
    """Why nothing follows from the recorded fact, and what else is to be known: by the state just before it."""
    said: tuple[str | None, str | None] = (None, None)
    state, wanted = State(), _fact(args)
    with open_log(args.log, create=False, read_only=True) as log:
        for record in log.read(run_id):
            event = record.event
            if event.type == wanted["type"] and event.to_json()["data"] == wanted["data"]:
                first = not isinstance(event.data, OperatorRequested) or event.data.request not in state.requests
                if first:
                    said = nothing_follows(state, event.data), also(state, event.data)
            apply(state, record)
    return said


def _fact(args: argparse.Namespace) -> dict[str, Any]:
    if args.verb in ("cordon", "uncordon"):
        kind = f"node_{args.verb}ed"
        data = {"node": args.node, "by": args.by, "why": args.why}
    else:
        kind = "operator_requested"
        node = getattr(args, "node", None)
        data = {"request": args.request, "action": args.verb, "node": node, "by": args.by, "why": args.why}
    return {"request": args.request, "by": args.by, "type": kind, "data": data}


def find_decider(log: str, run_id: str | None) -> tuple[str, str, int, bytes]:
    """Run id, address, port and secret of the decider that writes this log.

    Raises:
        RunNotChosen: there is no such run, or it is not clear which one is meant.
        DeciderNotFound: nobody holds the run's lease, or its secret is not ours to read.
        StoreError: the log cannot be read.
    """
    with open_log(log, create=False, read_only=True) as event_log:
        run_id = chosen_run(event_log, run_id)
        lease = event_log.lease(run_id)
        if lease is None or lease.expires_at_ms < event_log.now_ms():
            raise DeciderNotFound(f"nobody decides for run {run_id!r} at the moment")
    host, _, port = lease.address.rpartition(":")
    return run_id, host, int(port), _secret(log)


def _secret(log: str) -> bytes:
    if path := os.environ.get("LM_RESILIENCY_SECRET_FILE"):
        try:
            return Path(path).read_bytes().strip()
        except OSError as error:
            raise DeciderNotFound(f"LM_RESILIENCY_SECRET_FILE: cannot read {path}: {error.strerror}") from None
    local = Path(log.removeprefix("sqlite:///")).with_name(DECIDER_FILE)
    try:
        return bytes.fromhex(json.loads(local.read_text())["secret"])
    except (OSError, ValueError, KeyError):
        raise DeciderNotFound(f"set LM_RESILIENCY_SECRET_FILE, or run this where {local} can be read") from None


def _ask(host: str, port: int, secret: bytes, message: dict[str, Any]) -> dict[str, Any]:
    with socket.create_connection((host, port), timeout=WAIT_S) as sock:
        channel = Channel(sock, secret, "client")
        channel.send(message)
        return channel.recv()
