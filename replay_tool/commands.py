"""From parsed arguments to a verb, its screen or JSON, and the exit code. Each verb loads only the modules it needs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lmr.replay_tool.as_json import document, one_line
from lmr.replay_tool.errors import Usage
from lmr.replay_tool.printing import console, progress

if TYPE_CHECKING:
    from lmr.engine.policy import RecoveryPolicy

FINE, FOUND, CANNOT_READ = 0, 1, 2

ARTEFACT_KINDS = ("torchelastic", "agent-log", "collective", "flight-recorder", "kernel", "nvrx", "sacct")


def verify(args: argparse.Namespace) -> int:
    """`lmr-replay verify`."""
    from lmr.replay_tool.screens import verify as screen
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.anchors import read_anchors
    from lmr.replay_tool.verbs.verify import verify as run

    log = open_source(args.log, args.run)
    anchors = [anchor for name in args.anchors for anchor in read_anchors(Path(name), log.run_id)]
    with progress("verifying", log.length) as tell:
        found = run(log, anchors=anchors, progress=tell)
    if args.json:
        print(document(found))
    else:
        screen.show(found, console())
    return FINE if found.ok else FOUND


def timeline(args: argparse.Namespace) -> int:
    """`lmr-replay timeline`."""
    from lmr.replay_tool.screens import timeline as screen
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.timeline import timeline as run

    found = run(open_source(args.log, args.run), incident=args.incident, node=args.node, since=args.since)
    if args.json:
        print(document(found))
    else:
        screen.show(found, console(), every_node=args.all_nodes)
    return FINE


def explain(args: argparse.Namespace) -> int:
    """`lmr-replay explain`."""
    from lmr.replay_tool.screens import explain as screen
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.explain import explain as run
    from lmr.replay_tool.verbs.why_not import why_not

    log = open_source(args.log, args.run)
    found = run(log, args.plan)
    answers = [why_not(log, found, option) for option in args.why_not]
    if args.json:
        print(document({**_fields(found), "why_not": answers} if args.why_not else found))
        return FINE
    out = console()
    screen.show(found, out)
    for answer in answers:
        screen.show_why_not(answer, out)
    return FINE


def _fields(value: object) -> dict[str, object]:
    return dict(vars(value))


def decide(args: argparse.Namespace) -> int:
    """`lmr-replay decide`."""
    from lmr.replay_tool.screens import decide as screen
    from lmr.replay_tool.verbs.decide import decide as run

    policy = _policy(args.policy) if args.policy else None
    found = run(args.facts, policy=policy)
    if args.into:
        from lmr.replay_tool.keeping import keep_records

        keep_records(found.records, args.into)
    if args.json:
        for decision in found.decisions:
            print(one_line(decision.to_json()))
        for note in found.notes:
            print(f"lmr-replay: note: {note}", file=sys.stderr)
    else:
        screen.show(found, console(), into=args.into)
    return FINE


def state(args: argparse.Namespace) -> int:
    """`lmr-replay state`."""
    from lmr.replay_tool.screens import state as screen
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.state import state as run

    found = run(open_source(args.log, args.run), at=args.at)
    if args.json:
        print(document(found))
    else:
        screen.show(found, console())
    return FINE


def diff(args: argparse.Namespace) -> int:
    """`lmr-replay diff`."""
    from lmr.replay_tool.screens import diff as screen
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.diff import diff_logs, diff_points

    log = open_source(args.log, args.run)
    if args.other is not None and not args.at:
        found = diff_logs(log, open_source(args.other, args.other_run))
    elif args.other is None and len(args.at) == 2:
        found = diff_points(log, args.at[0], args.at[1])
    else:
        raise Usage("diff: name two logs, or one log and --at twice")
    if args.json:
        print(document(found))
    else:
        screen.show(found, console())
    return FINE if found.same else FOUND


def bisect(args: argparse.Namespace) -> int:
    """`lmr-replay bisect`."""
    from lmr.replay_tool.screens import bisect as screen
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.bisect import bisect as run

    if args.limit < 1:
        raise Usage(f"bisect: --limit {args.limit}: must be 1 or more")
    with progress("replaying", args.limit) as tell:
        found = run(open_source(args.log, args.run), args.plan, limit=args.limit, progress=tell)
    if args.json:
        print(document(found))
    else:
        screen.show(found, console())
    return FINE


def whatif(args: argparse.Namespace) -> int:
    """`lmr-replay whatif`."""
    from lmr.replay_tool.screens import whatif as screen
    from lmr.replay_tool.verbs.whatif import logs_in, whatif_all

    if args.policy is None and not args.without:
        raise Usage("whatif: give --policy FILE.toml, --without SEQ, or both")
    policy = _policy(args.policy) if args.policy else None
    paths = logs_in(args.logs)
    if args.without and len(paths) != 1:
        raise Usage("whatif: --without names a seq of one log")
    with progress("replaying", len(paths)) as tell:
        found = whatif_all(paths, run_id=args.run, policy=policy, without=args.without, progress=tell)
    if args.json:
        print(document(found))
    else:
        screen.show(found, console())
    if found.unreadable:
        return CANNOT_READ
    return FOUND if found.changed else FINE


def report(args: argparse.Namespace) -> int:
    """`lmr-replay report`."""
    from lmr.replay_tool.outputs import output_path
    from lmr.replay_tool.report.page import write_report
    from lmr.replay_tool.source import open_source

    output = output_path(args.output, [args.log])
    written = write_report(open_source(args.log, args.run), output)
    _say_written(written.output, document(written) if args.json else written.text)
    return FINE


def export(args: argparse.Namespace) -> int:
    """`lmr-replay export`."""
    from lmr.replay_tool.outputs import output_path
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.export import export as run

    output = output_path(args.output, [args.log])
    log = open_source(args.log, args.run)
    with progress("exporting", log.length) as tell:
        written = run(log, output, form=args.format, redact=args.redact, progress=tell)
    _say_written(written.output, document(written) if args.json else written.text)
    return FINE


def import_(args: argparse.Namespace) -> int:
    """`lmr-replay import`."""
    from lmr.replay_tool.outputs import output_path
    from lmr.replay_tool.verbs.importing import import_artefacts, import_log, is_log

    if is_log(args.files, args.kind):
        if args.output is not None:
            raise Usage(
                f"import: {args.files[0]} is a log of ours, and -o is for the facts found in artefacts; "
                "say --into URL, or: lmr-replay export --format facts -o FACTS.jsonl"
            )
        if args.into is None:
            raise Usage("import: say --into URL")
        brought = import_log(args.files[0], args.into, run_id=args.run)
    else:
        if args.into is None and args.output is None:
            raise Usage("import: say -o FACTS.jsonl, --into URL, or both")
        brought = import_artefacts(
            [Path(name) for name in args.files], kind=args.kind, run_id=args.run, nodes=_names(args.nodes),
            standby=_names(args.standby), local_world_size=args.nproc_per_node, year=args.year,
            durable_step=args.durable_step,
            output=output_path(args.output, args.files) if args.output else None, into=args.into,
        )  # fmt: skip
    _say_written(args.output or "", document(brought) if args.json else brought.text)
    return FINE


def simulate(args: argparse.Namespace) -> int:
    """`lmr-replay simulate`."""
    from lmr.replay_tool.screens import simulate as screen
    from lmr.replay_tool.verbs.simulate import simulate as run

    found = run(
        profile=args.profile,
        nodes=args.nodes,
        days=args.days,
        seed=args.seed,
        standbys=args.standby,
        repair_hours=args.repair_hours,
        policies={name: _policy(name) for name in args.policy},
    )
    if args.json:
        print(document(found))
    else:
        screen.show(found, console())
    return FINE


def completion(args: argparse.Namespace) -> int:
    """`lmr-replay completion`."""
    from lmr.replay_tool.completion import script

    print(script(args.shell), end="")
    return FINE


def _policy(name: str) -> RecoveryPolicy:
    from lmr.replay_tool.policy_file import read_policy, unchecked_keys

    policy = read_policy(Path(name))
    if unchecked := unchecked_keys(Path(name)):
        said = f"{name}: not checked here: {', '.join(unchecked)}; `lmr doctor --worker-config {name}` does"
        print(f"lmr-replay: note: {said}", file=sys.stderr)
    return policy


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


def _say_written(output: str, text: str) -> None:
    # `-o -` or /dev/stdout carries the answer itself: the line about it goes elsewhere.
    print(text, file=sys.stderr if output in ("-", "/dev/stdout") else sys.stdout)
