"""Run a campaign: `python tests/chaos/run.py --minutes 10 --seed 7`. `make chaos` does it; see --help for one round."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from network_machines import Machines, cannot
from postgres_server import PostgresServer, end_postgres_server, make_postgres_server, new_schema

from chaos.campaign import Round, uninterrupted

KINDS = ("embedded", "database", "partitions", "partitions with a database")
FAULTS_A_ROUND = 10
STEPS = 1_200


def main() -> int:
    """Rounds until the time is up; exit code 1 when something was wrong in one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="start no round after so long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the whole campaign (default: %(default)s)")
    parser.add_argument("--round", type=int, help="only this round of the seed")
    args = parser.parse_args()
    return campaign(args.minutes, args.seed, args.round)


def campaign(minutes: float, seed: int, only: int | None = None) -> int:
    """Play rounds. Returns how many went wrong."""
    begun, bad, faults = time.monotonic(), 0, 0
    kinds = KINDS if (why := cannot()) is None else KINDS[:2]
    print(f"seed {seed}, {minutes} minutes{f'; no partitions: {why}' if why else ''}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    plain = uninterrupted(folder / "uninterrupted", STEPS)
    for number in itertools.count(1) if only is None else (only,):
        if time.monotonic() - begun > 60 * minutes:
            break
        kind = kinds[(number - 1) % len(kinds)]
        print(f"round {number}, {kind}", flush=True)
        wrong, struck = play(folder / f"round-{number}", f"{seed}:{number}", kind, plain)
        faults += struck
        for line in wrong:
            print(f"  WRONG: {line}", flush=True)
        bad += bool(wrong)
        if not wrong:
            shutil.rmtree(folder / f"round-{number}")
    print(f"{faults} faults in {time.monotonic() - begun:.0f} s; rounds gone wrong: {bad}", flush=True)
    if bad:
        print(f"kept: {folder}; once more: python tests/chaos/run.py --seed {seed} --round N", flush=True)
    else:
        shutil.rmtree(folder)
    return bad


def play(folder: Path, seed: str, kind: str, plain: Path) -> tuple[list[str], int]:
    """One round. Returns what was wrong, and how many faults there were."""
    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"  {time.monotonic() - begun:6.1f} s  {what}", flush=True)

    with contextlib.ExitStack() as stack:
        machines = stack.enter_context(Machines()) if "partitions" in kind else None
        server, url = stack.enter_context(_database(machines)) if "database" in kind else (None, None)
        run = Round(folder, seed, STEPS, say, server, url, machines)
        wrong = run.play(FAULTS_A_ROUND)
        return wrong or run.compare(plain), run.faults


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
