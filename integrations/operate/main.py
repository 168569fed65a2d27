"""The `lmr` command: what an operator types besides torchrun."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from lmr import __version__
from lmr.replay_tool.standard_output import READER_WENT, give_up_unwritten, replace_unknown_characters

VERBS = {
    "demo": "the closed loop on this machine: kill a worker, kill a machine, flip a bit, and training goes on",
    "inject": "run a command with real faults in it, for tests and drills",
    "bench": "measure recovery and its parts, as ratios side by side",
    "db": "upgrade, check or show the event log's schema; archive its old records",
    "doctor": "check this machine's set-up; each failing line says the cure",
    "status": "where a run stands, from its event log",
    "watch": "where a run stands, live, until it ends",
    "metrics": "serve Prometheus metrics of the runs in an event log",
    "spans": "send an OpenTelemetry span of each recovery in an event log",
    "cordon": "never use a node as a replacement",
    "uncordon": "a cordoned or quarantined node may be used again",
    "replace": "ask for a node to be replaced by a standby",
    "restart": "ask for a restart of the worker group",
    "halt": "end the run",
    "resume": "look again at a run that holds",
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of every verb."""
    parser = argparse.ArgumentParser(
        prog="lmr",
        description="Operate closed-loop recovery for torchrun training. Offline analysis: lmr-replay.",
    )
    parser.add_argument("--version", action="version", version=f"lmr {__version__}", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, summary in VERBS.items():
        module = importlib.import_module(f"lmr.integrations.operate.{_module(verb)}")
        sub = verbs.add_parser(verb, help=summary, description=_description(verb, summary, module.__doc__ or ""))
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def _description(verb: str, summary: str, about: str) -> str:
    """What the verb does, before what its module says of all its verbs."""
    alone = sum(_module(other) == _module(verb) for other in VERBS) == 1
    return about if alone else f"{summary[0].upper()}{summary[1:]}. {about}"


def _module(verb: str) -> str:
    if verb in ("status", "watch"):
        return "watch"
    return "request" if verb in ("cordon", "uncordon", "replace", "restart", "halt", "resume") else verb


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Returns its exit code: 0 fine, 1 found or failed, 2 cannot be done, 141 nobody reads the output.

    Told to end by SIGINT or SIGTERM, a verb first ends what it started: agents of a demo or a benchmark.
    """
    replace_unknown_characters()
    args = build_parser().parse_args(argv)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head`: 0 or 1 would say something of the run
        give_up_unwritten()
        return READER_WENT
    except OSError as error:
        give_up_unwritten()
        where = f"{error.filename}: " if error.filename else ""
        print(f"lmr {args.verb}: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
