"""The command line: what each verb takes, with help that can be read as its manual page."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from lmr import __version__
from lmr.replay_tool import commands

Command = Callable[[argparse.Namespace], int]

LOG_HELP = "SQLAlchemy URL, SQLite file, JSONL file (facts or full records) or bundle"
EXIT_CODES = "exit codes:\n  0  fine\n  1  something was found{found}\n  2  the input cannot be read, or the question makes no sense"


@dataclass(frozen=True)
class Verb:
    """One subcommand: its manual page and what it takes."""

    name: str
    summary: str
    description: str
    examples: tuple[str, ...]
    arguments: Callable[[argparse.ArgumentParser], None]
    command: Command
    found: str = ""
    has_log: bool = True


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="lmr-replay",
        description="Offline analysis of recovery logs: what happened, why, and what would have happened.",
        epilog="A LOG is a SQLAlchemy URL, a SQLite file, a JSONL file (bare facts or full records) or a bundle.\n"
        "`lmr-replay VERB --help` shows options and examples; docs/replay.md walks through one incident.\n\n"
        + EXIT_CODES.format(found=" (a fault, a difference, a changed decision)"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lmr-replay {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, dest="verb")
    for verb in VERBS:
        _add(verbs, verb)
    return parser


def _add(verbs: argparse._SubParsersAction[argparse.ArgumentParser], verb: Verb) -> None:
    found = f": {verb.found}" if verb.found else " (never, by this verb)"
    epilog = "examples:\n" + "\n".join(f"  {line}" for line in verb.examples) + "\n\n" + EXIT_CODES.format(found=found)
    parser = verbs.add_parser(
        verb.name,
        help=verb.summary,
        description=verb.description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if verb.has_log:
        parser.add_argument("log", metavar="LOG", help=LOG_HELP)
        parser.add_argument("--run", metavar="ID", help="the run to read, when the log holds several")
    verb.arguments(parser)
    if verb.name != "completion":
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.set_defaults(command=verb.command)


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--anchors",
        metavar="FILE",
        action="append",
        default=[],
        help="a restart context or other JSON that kept a head {seq, hash}: shows a cut tail (may be repeated)",
    )


def _timeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--incident", metavar="N", type=int, help="only this incident")
    parser.add_argument("--node", metavar="NODE", help="only what concerns this node")
    parser.add_argument("--since", metavar="WHEN", help="90s, 15m, 2h before the end; +30 s after the start; an ISO time")
    parser.add_argument("--all-nodes", action="store_true", help="list nodes that were never blamed, however many")


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan", metavar="PLAN", nargs="?", default="last",
        help="beginning of a plan's id, seq:57, incident:3, generation:1 or last (default: last)",
    )  # fmt: skip
    parser.add_argument(
        "--why-not", metavar="OPTION", action="append", default=[],
        help="restart, replace, hold, halt, a node's name, or step=1243 (may be repeated)",
    )  # fmt: skip


def _decide(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("facts", metavar="FACTS.jsonl", help="JSONL of facts, one event a line; `-` reads standard input")
    parser.add_argument("--policy", metavar="FILE.toml", help="decide under this file's [recovery] table instead")
    parser.add_argument("--into", metavar="URL", help="also write facts and decisions as a new log")


def _state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--at", metavar="SEQ", type=int, help="the state after this record (default: the last)")


def _diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("other", metavar="OTHER", nargs="?", help="the other log; leave out to compare two points of LOG")
    parser.add_argument("--at", metavar="SEQ", type=int, action="append", default=[], help="a point of LOG (give it twice)")
    parser.add_argument("--other-run", metavar="ID", help="the run to read in OTHER, when it holds several")


def _bisect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", nargs="?", default="last", help="which plan, as for explain")
    parser.add_argument("--limit", metavar="N", type=int, default=2000, help="replays to spend at most (default: 2000)")


def _whatif(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", metavar="LOG", nargs="+", help=LOG_HELP + ", or a folder of them")
    parser.add_argument("--run", metavar="ID", help="the run to read, when the log holds several")
    parser.add_argument("--policy", metavar="FILE.toml", help="decide under this file's [recovery] table")
    parser.add_argument(
        "--without", metavar="SEQ", type=int, action="append", default=[],
        help="as if this fact had never come (may be repeated)",
    )  # fmt: skip


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE.html", required=True, help="the file to write")


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    parser.add_argument(
        "--format", choices=("bundle", "jsonl", "facts", "csv", "perfetto"), default=None,
        help="default: by the file's name (.jsonl, .csv, .json), else bundle; facts: JSONL without decisions",
    )  # fmt: skip
    parser.add_argument(
        "--redact", action="store_true", help="bundle only: replace addresses, hosts and error texts consistently"
    )


def _import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="a bundle, full JSONL, or artefacts of other systems")
    parser.add_argument("--into", metavar="URL", help="the database to write to")
    parser.add_argument("-o", "--output", metavar="FACTS.jsonl", help="write the facts found in artefacts to this file")
    parser.add_argument(
        "--from", dest="kind", metavar="KIND", default="auto",
        help="auto, or one of: " + ", ".join(commands.ARTEFACT_KINDS),
    )  # fmt: skip
    parser.add_argument("--run", metavar="ID", help="run id for facts from artefacts (default: imported)")
    parser.add_argument("--nodes", metavar="A,B,...", help="nodes of the job in slot order (default: those named in the files)")
    parser.add_argument("--standby", metavar="C,D,...", help="nodes that stood by (default: none)")
    parser.add_argument("--nproc-per-node", metavar="L", type=int, help="ranks of a node (default: from the files, else 8)")
    parser.add_argument("--year", type=int, help="year of log lines that carry none (default: this one)")


def _simulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", default="llama3", help="failure statistics: " + ", ".join(commands.PROFILES))
    parser.add_argument("--nodes", metavar="N", type=int, default=256, help="nodes that train (default: 256)")
    parser.add_argument("--standby", metavar="N", type=int, action="append", default=[], help="standbys; repeat to compare")
    parser.add_argument("--days", metavar="D", type=int, default=30, help="days of the campaign (default: 30)")
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="seed; equal seeds give equal campaigns")
    parser.add_argument("--policy", metavar="FILE.toml", action="append", default=[], help="a policy; repeat to compare")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete in")


VERBS = (
    Verb(
        "verify", "check the hash chain and recompute every decision",
        "Checks that nobody changed the log (hash chain, and heads kept outside it), that every decision equals what the\n"
        "engine decides from the records before it, byte for byte, and that deadlines were due when they were recorded.\n"
        "A decision or deadline that is still due at the end is reported; it is no fault.",
        ("lmr-replay verify events.db", "lmr-replay verify postgresql+psycopg://audit@db/lmr --run llama-7b",
         "lmr-replay verify run.jsonl --anchors restart-context.json --json"),
        _verify, commands.verify, "a fault",
    ),
    Verb(
        "timeline", "incidents, generations, nodes and facts in order",
        "Tells the run in order: each incident with its evidence, plans, phases and lost steps; generations; the roles of\n"
        "each node; every fact that is not of the healthy loop.",
        ("lmr-replay timeline events.db", "lmr-replay timeline events.db --incident 2",
         "lmr-replay timeline events.db --node node-4 --since 30m --json"),
        _timeline, commands.timeline,
    ),
    Verb(
        "explain", "why a plan was committed, and why not another",
        "Tells one decision in plain English: the facts cited, the rule that fired, who runs now, the source of each\n"
        "shard, and every rejected alternative with its reason.",
        ("lmr-replay explain events.db 3f9a1c2e", "lmr-replay explain events.db incident:2 --why-not restart",
         "lmr-replay explain events.db last --why-not node-6 --why-not step=1243"),
        _explain, commands.explain,
    ),
    Verb(
        "state", "the engine's state after a record",
        "Folds the log up to a seq and prints what the engine knew there: nodes, generation, copies, incident, deadlines.",
        ("lmr-replay state events.db --at 120", "lmr-replay state events.db --json"),
        _state, commands.state,
    ),
    Verb(
        "decide", "run the engine over facts alone",
        "Runs the engine over a JSONL file of facts: due deadlines fire by the facts' own `at_ms` (before a fact at or past\n"
        "the due time; after the last fact, those due within 10 s of it) and each decision is committed as it falls.\n"
        "With --json it prints one line a decision: the number of facts consumed, the type, and the plan or data.",
        ("lmr-replay decide facts.jsonl", "lmr-replay decide facts.jsonl --policy worker.toml --json",
         "lmr-replay decide facts.jsonl --into run.db && lmr-replay explain run.db last"),
        _decide, commands.decide, has_log=False,
    ),
    Verb(
        "whatif", "the same facts under another policy, or without some of them",
        "Decides the recorded facts again under another policy or without some facts, and compares: which decisions change,\n"
        "and what that means in steps lost, standbys used and recovery time (from the log's own recoveries). Where the\n"
        "future depends on what never happened it says `unknown from here` and stops.",
        ("lmr-replay whatif events.db --policy new.toml", "lmr-replay whatif events.db --without 57 --json",
         "lmr-replay whatif logs/ --policy new.toml"),
        _whatif, commands.whatif, "a decision changes", has_log=False,
    ),
    Verb(
        "diff", "two logs, or one log at two points",
        "Compares two logs (the first record that differs, then decisions and final states) or one log's state at two points.",
        ("lmr-replay diff a.db b.db", "lmr-replay diff events.db --at 40 --at 60"),
        _diff, commands.diff, "they differ",
    ),
    Verb(
        "bisect", "the facts a decision hangs on",
        "Finds the smallest set of facts without which the decision would have been another (delta debugging), and the\n"
        "single event that flipped it: the first fact after which the engine would decide as it did.",
        ("lmr-replay bisect events.db last", "lmr-replay bisect events.db incident:3 --json"),
        _bisect, commands.bisect,
    ),
    Verb(
        "report", "one self-contained HTML file of a run",
        "Writes a page that needs no network: swim lanes of nodes over time with generations, incidents, plans and\n"
        "evidence, loss of progress, and the explanation of each plan. Readable in dark and light, printable, keyboard-usable.",
        ("lmr-replay report events.db -o incident.html",),
        _report, commands.report,
    ),
    Verb(
        "export", "write a log as bundle, JSONL, CSV or Perfetto trace",
        "Writes the log in another form. A bundle holds everything and imports again byte for byte; jsonl holds full records;\n"
        "facts holds the facts alone; csv one row a record; perfetto a trace for https://ui.perfetto.dev.",
        ("lmr-replay export events.db -o run.lmrb", "lmr-replay export events.db -o run.lmrb --redact",
         "lmr-replay export events.db --format perfetto -o trace.json"),
        _export, commands.export,
    ),
    Verb(
        "import", "read a bundle, JSONL or other systems' artefacts",
        "Restores a bundle or full JSONL into a database, or reads what you have today (torchelastic error files, agent logs,\n"
        "NCCL and gloo texts, flight-recorder dumps, Xid and MCE lines, NVRx cycle info, Slurm sacct) into the same facts, so\n"
        "that `decide` can say what the engine would have decided last night.",
        ("lmr-replay import run.lmrb --into sqlite:///copy.db",
         "lmr-replay import error-*.json dmesg.txt --nodes n1,n2,n3 --standby n4 -o facts.jsonl",
         "lmr-replay import nccl.log --from nccl --into last-night.db && lmr-replay explain last-night.db last"),
        _import, commands.import_, has_log=False,
    ),
    Verb(
        "simulate", "failure campaigns before the job starts",
        "Plays campaigns drawn from published failure statistics through the engine, to size the standby pool and to tune the\n"
        "policy before a job starts. With several policies or pool sizes it names those that no other beats.",
        ("lmr-replay simulate --profile llama3 --nodes 2048 --days 54",
         "lmr-replay simulate --profile rsc1 --nodes 256 --standby 2 --standby 8 --policy a.toml --policy b.toml"),
        _simulate, commands.simulate, has_log=False,
    ),
    Verb(
        "completion", "print a shell completion script",
        "Prints a completion script for the shell.",
        ("source <(lmr-replay completion bash)", "lmr-replay completion fish > ~/.config/fish/completions/lmr-replay.fish"),
        _completion, commands.completion, has_log=False,
    ),
)  # fmt: skip
"""Every verb, in the order of `--help`."""
