"""Run a campaign: `python tests/chaos/run.py --minutes 10 --seed 7`. `make chaos` does it; see --help for one round."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from network_machines import Machines, cannot
from postgres_server import PostgresServer, end_postgres_server, make_postgres_server, new_schema

from chaos.campaign import Round, uninterrupted

KINDS = ("embedded", "database", "partitions", "partitions with a database")
FAULTS_A_ROUND = 16
STEPS = 1_500
FOLDER = Path(__file__).parents[2] / "build" / "chaos"


def main() -> int:
    """Rounds until the time is up; exit code 1 when something was wrong in one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of rounds of faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the whole campaign (default: %(default)s)")
    parser.add_argument("--round", type=int, help="only this round of the seed")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="emptied first; rounds gone wrong stay there (default: %(default)s)"
    )
    args = parser.parse_args()
    shutil.rmtree(args.folder, ignore_errors=True)
    return campaign(args.folder, args.minutes, args.seed, args.round)


def campaign(folder: Path, minutes: float, seed: int, only: int | None = None) -> int:
    """Play rounds. Returns how many went wrong; each has left a folder with its log and outputs."""
    kinds = KINDS if (why := cannot()) is None else KINDS[:2]
    print(f"seed {seed}, {minutes} minutes{f'; no partitions: {why}' if why else ''}", flush=True)
    begun = time.monotonic()
    plain = uninterrupted(folder / "uninterrupted", STEPS)
    print(f"{STEPS} steps without interruption: {time.monotonic() - begun:.0f} s", flush=True)
    begun, longest, bad = time.monotonic(), 0.0, 0
    until, faults = begun + 60 * minutes, Counter[str]()
    for number in itertools.count(1) if only is None else (only,):
        started = time.monotonic()
        if started + longest > until:
            break
        kind = kinds[(number - 1) % len(kinds)]
        print(f"round {number}, {kind}", flush=True)
        wrong, struck = play(folder / f"round-{number}", f"{seed}:{number}", kind, plain, until)
        faults += struck
        for line in wrong:
            print(f"  WRONG: {line}", flush=True)
        if wrong:
            bad += 1
            print(f"  kept: {folder / f'round-{number}'}; its log for lmr-replay: log.jsonl", flush=True)
        else:
            shutil.rmtree(folder / f"round-{number}")
        longest = max(longest, time.monotonic() - started)
    struck_by = ", ".join(f"{group} {count}" for group, count in sorted(faults.items()))
    print(
        f"{faults.total()} faults ({struck_by}) in {time.monotonic() - begun:.0f} s; rounds gone wrong: {bad}",
        flush=True,
    )
    if bad:
        print(f"once more: python tests/chaos/run.py --seed {seed} --round N", flush=True)
    return bad


def play(folder: Path, seed: str, kind: str, plain: Path, until: float) -> tuple[list[str], Counter[str]]:
    """One round; no fault comes after `until`. Returns what was wrong, and how many faults of each group there were."""
    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"  {time.monotonic() - begun:6.1f} s  {what}", flush=True)

    with contextlib.ExitStack() as stack:
        machines = stack.enter_context(Machines()) if "partitions" in kind else None
        server, url = stack.enter_context(_database(machines)) if "database" in kind else (None, None)
        run = Round(folder, seed, STEPS, say, server, url, machines)
        wrong = run.play(FAULTS_A_ROUND, until) + run.compare(plain)
        if wrong:
            run.keep_log()
        return wrong, run.faults


@contextlib.contextmanager
def _database(machines: Machines | None) -> Iterator[tuple[PostgresServer, str]]:
    server = make_postgres_server()
    try:
        if machines is None:
            yield server, new_schema(server.url)
        else:
            server.serve_network(machines.host)
            yield server, f"postgresql+psycopg://postgres@{machines.host}:5432/postgres?connect_timeout=2"
    finally:
        end_postgres_server(server)


if __name__ == "__main__":
    raise SystemExit(min(main(), 1))
