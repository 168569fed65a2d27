"""The manual page of each verb: what `lmr-replay VERB --help` says around the options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """One verb's page.

    Attributes:
        summary: one line for the list of verbs.
        description: paragraphs; wrapped when shown.
        examples: command lines that make sense as they stand.
        found: what exit code 1 means; empty when the verb never exits so.
    """

    summary: str
    description: str
    examples: tuple[str, ...]
    found: str = ""


PAGES = {
    "verify": Page(
        "check the hash chain and recompute every decision",
        "Checks that nobody changed the log (hash chain, and heads kept outside it), that every decision equals what "
        "the engine decides from the records before it, byte for byte, and that deadlines were due when they were "
        "recorded. A decision or deadline that is still due at the end is reported; it is no fault.",
        (
            "lmr-replay verify events.db",
            "lmr-replay verify postgresql+psycopg://audit@db/lmr --run llama-7b",
            "lmr-replay verify run.jsonl --anchors restart-context.json --json",
        ),
        "a fault",
    ),
    "timeline": Page(
        "incidents, generations, nodes and facts in order",
        "Tells the run in order: each incident with its evidence, plans, phases and lost steps; generations; the roles "
        "of each node; every fact that is not of the healthy loop.",
        (
            "lmr-replay timeline events.db",
            "lmr-replay timeline events.db --incident 2",
            "lmr-replay timeline events.db --node node-4 --since 30m --json",
        ),
    ),
    "explain": Page(
        "why a plan was committed, and why not another",
        "Tells one decision in plain English: the facts cited, the rule that fired, who runs now, the source of each "
        "shard, and every rejected alternative with its reason.",
        (
            "lmr-replay explain events.db 3f9a1c2e",
            "lmr-replay explain events.db incident:2 --why-not restart",
            "lmr-replay explain events.db last --why-not node-6 --why-not step=1243",
        ),
    ),
    "state": Page(
        "the engine's state after a record",
        "Folds the log up to a seq and prints what the engine knew there: nodes, generation, copies of each step, open "
        "incident, deadlines.",
        ("lmr-replay state events.db --at 120", "lmr-replay state events.db --json"),
    ),
    "decide": Page(
        "run the engine over facts alone",
        "Runs the engine over a JSONL file of facts. Due deadlines fire by the facts' own `at_ms` (before a fact at or "
        "past the due time; after the last fact, those due within 10 s of it) and each decision is committed as it "
        "falls. With --json it prints one line a decision: the number of facts consumed, the type, and the plan or "
        "data. A policy file stands for the run's policy and for every later change of it; a key it leaves out has its "
        "default.",
        (
            "lmr-replay decide facts.jsonl",
            "lmr-replay decide facts.jsonl --policy worker.toml --json",
            "lmr-replay decide facts.jsonl --into run.db && lmr-replay explain run.db last",
        ),
    ),
    "whatif": Page(
        "the same facts under another policy, or without some of them",
        "Decides the recorded facts again under another policy or without some facts, and compares: which decisions "
        "change, and what that means in steps lost, standbys used and recovery time (from the log's own recoveries). "
        "Where the future depends on what never happened it says `unknown from here` and stops. Of several logs, one "
        "that cannot be read is passed over, and the exit code is 2. Of a worker policy only [recovery] is looked at; "
        "`lmr doctor --worker-config` checks the rest.",
        (
            "lmr-replay whatif events.db --policy new.toml",
            "lmr-replay whatif events.db --without 57 --json",
            "lmr-replay whatif logs/ --policy new.toml",
        ),
        "a decision changes",
    ),
    "diff": Page(
        "two logs, or one log at two points",
        "Compares two logs (the first record that differs, then decisions and final states) or one log's state at two "
        "points.",
        ("lmr-replay diff a.db b.db", "lmr-replay diff events.db --at 40 --at 60"),
        "they differ",
    ),
    "bisect": Page(
        "the facts a decision hangs on",
        "Finds the smallest set of facts without which the decision would have been another (delta debugging), and the "
        "single event that flipped it: the first fact after which the engine, hearing nothing more, decides as it did.",
        ("lmr-replay bisect events.db last", "lmr-replay bisect events.db incident:3 --json"),
    ),
    "report": Page(
        "one self-contained HTML file of a run",
        "Writes a page that needs no network: swim lanes of nodes over time with generations, incidents, plans and "
        "evidence, loss of progress, and the explanation of each plan. Readable in dark and light, printable, usable "
        "by keyboard.",
        ("lmr-replay report events.db -o incident.html",),
    ),
    "export": Page(
        "write a log as bundle, JSONL, CSV or Perfetto trace",
        "Writes the log in another form. A bundle holds everything and imports again byte for byte; jsonl holds full "
        "records; facts holds the facts alone; csv one row a record; perfetto a trace for https://ui.perfetto.dev "
        "(JSON, or protobuf when the file is called .pftrace).",
        (
            "lmr-replay export events.db -o run.lmrb.gz",
            "lmr-replay export events.db -o run.lmrb --redact",
            "lmr-replay export events.db --format perfetto -o trace.json",
        ),
    ),
    "import": Page(
        "read a bundle, JSONL or other systems' artefacts",
        "Restores a bundle or full JSONL into a database, or reads what you have today (torchelastic error files, "
        "agent logs, NCCL and gloo texts, flight-recorder dumps, Xid and MCE lines, NVRx cycle info, Slurm sacct) into "
        "the same facts, so that `decide` can say what the engine would have decided last night.",
        (
            "lmr-replay import run.lmrb --into sqlite:///copy.db",
            "lmr-replay import error-*.json dmesg.txt --nodes n1,n2,n3 --standby n4 -o facts.jsonl",
            "lmr-replay import nccl.log --from collective --nodes n1,n2 --nproc-per-node 4 --into last-night.db",
        ),
    ),
    "simulate": Page(
        "failure campaigns before the job starts",
        "Plays failures drawn from published statistics through the engine, at the profile's rate for so many nodes "
        "and days, to tune the policy and to size the pool of standbys before a job starts. With several policies or "
        "pool sizes it marks those that no other beats in both cost and chance of holding.",
        (
            "lmr-replay simulate --profile llama3 --nodes 256 --days 54",
            "lmr-replay simulate --profile rsc1 --nodes 64 --standby 2 --standby 8 --policy a.toml --policy b.toml",
        ),
    ),
    "completion": Page(
        "print a shell completion script",
        "Prints a completion script for bash, zsh or fish.",
        (
            "source <(lmr-replay completion bash)",
            "lmr-replay completion fish > ~/.config/fish/completions/lmr-replay.fish",
        ),
    ),
}
"""Every verb's page, in the order of `--help`."""
