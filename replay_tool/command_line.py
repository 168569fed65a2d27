"""The command line: what each verb takes, with help that can be read as its manual page."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from textwrap import fill

from lmr import __version__
from lmr.replay_tool import commands
from lmr.replay_tool.manual import PAGES, Page

Command = Callable[[argparse.Namespace], int]

LOG_HELP = "SQLAlchemy URL, SQLite file, JSONL file (facts or full records) or bundle"
EXIT_CODES = (
    "exit codes:\n  0  fine\n  1  something was found{found}\n"
    "  2  the input cannot be read, or the question makes no sense"
)
WIDTH = 100


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
    parser.add_argument(
        "--version", action="version", version=f"lmr-replay {__version__}", help="print the version and exit"
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, dest="verb")
    for name, page in PAGES.items():
        _add(verbs, name, page)
    return parser


def _add(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, page: Page) -> None:
    found = f": {page.found}" if page.found else " (never, by this verb)"
    epilog = "examples:\n" + "\n".join(f"  {line}" for line in page.examples) + "\n\n" + EXIT_CODES.format(found=found)
    parser = verbs.add_parser(
        name,
        help=page.summary,
        description=fill(page.description, WIDTH),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments, command = ARGUMENTS[name]
    if name not in WITHOUT_LOG:
        parser.add_argument("log", metavar="LOG", help=LOG_HELP)
        parser.add_argument("--run", metavar="ID", help="the run to read, when the log holds several")
    arguments(parser)
    if name != "completion":
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.set_defaults(command=command)


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
    parser.add_argument(
        "--since", metavar="WHEN", help="90s, 15m, 2h before the end; +30 s after the start; an ISO time"
    )
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
    parser.add_argument(
        "facts", metavar="FACTS.jsonl", help="JSONL of facts, one event a line; `-` reads standard input"
    )
    parser.add_argument("--policy", metavar="FILE.toml", help="decide under this file's [recovery] table instead")
    parser.add_argument("--into", metavar="URL", help="also write facts and decisions as a new log")


def _state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--at", metavar="SEQ", type=int, help="the state after this record (default: the last)")


def _diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "other", metavar="OTHER", nargs="?", help="the other log; leave out to compare two points of LOG"
    )
    parser.add_argument(
        "--at", metavar="SEQ", type=int, action="append", default=[], help="a point of LOG (give it twice)"
    )
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
    parser.add_argument(
        "-o", "--output", metavar="FILE.html", required=True, help="the file to write; - is standard output"
    )


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the file; - is standard output")
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
    parser.add_argument(
        "-o", "--output", metavar="FACTS.jsonl", help="where to write facts found in artefacts; - is standard output"
    )
    parser.add_argument(
        "--from", dest="kind", metavar="KIND", default="auto",
        help="auto, or one of: " + ", ".join(commands.ARTEFACT_KINDS),
    )  # fmt: skip
    parser.add_argument("--run", metavar="ID", help="run id for facts from artefacts (default: imported)")
    parser.add_argument(
        "--nodes", metavar="A,B,...", help="nodes of the job in slot order (default: those named in the files)"
    )
    parser.add_argument("--standby", metavar="C,D,...", help="nodes that stood by (default: none)")
    parser.add_argument(
        "--nproc-per-node", metavar="L", type=int, help="ranks of a node (default: from the files, else 8)"
    )
    parser.add_argument(
        "--durable-step", metavar="STEP", type=int, help="a step the framework had saved (default: none)"
    )
    parser.add_argument("--year", type=int, help="year of log lines that carry none (default: this one)")


def _simulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", default="llama3", help="failure statistics: llama3, ft-hsdp, rsc1 (default: llama3)"
    )
    parser.add_argument("--nodes", metavar="N", type=int, default=256, help="nodes that train (default: 256)")
    parser.add_argument("--days", metavar="D", type=int, default=30, help="days of training (default: 30)")
    parser.add_argument(
        "--seed", metavar="S", type=int, default=1, help="equal seeds give equal campaigns (default: 1)"
    )
    parser.add_argument(
        "--standby",
        metavar="N",
        type=int,
        action="append",
        default=[],
        help="a pool size; repeat to compare (default: 1, 2, 4, 8 and 16)",
    )
    parser.add_argument(
        "--repair-hours", metavar="H", type=int, default=24, help="until a replaced machine is back (default: 24)"
    )
    parser.add_argument(
        "--policy", metavar="FILE.toml", action="append", default=[], help="a policy; repeat to compare"
    )


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete in")


ARGUMENTS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], Command]] = {
    "verify": (_verify, commands.verify),
    "timeline": (_timeline, commands.timeline),
    "explain": (_explain, commands.explain),
    "state": (_state, commands.state),
    "decide": (_decide, commands.decide),
    "whatif": (_whatif, commands.whatif),
    "diff": (_diff, commands.diff),
    "bisect": (_bisect, commands.bisect),
    "report": (_report, commands.report),
    "export": (_export, commands.export),
    "import": (_import, commands.import_),
    "simulate": (_simulate, commands.simulate),
    "completion": (_completion, commands.completion),
}
"""What each verb takes, and what runs it."""
WITHOUT_LOG = ("decide", "whatif", "import", "simulate", "completion")
"""Verbs whose first argument is not one LOG."""
