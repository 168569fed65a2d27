"""Play seeds: `python tests/simulation/run.py --seed 17` prints one history, `--seeds 0:10000` looks for a bad one."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulation.history import play, quiet


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and print what happened")
    parser.add_argument("--seeds", default="0:1000", help="FROM:TO")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    args = parser.parse_args()
    if args.seed is not None:
        with quiet():
            history, wrong = play(args.seed)
        print(history.shape)
        print("\n".join(history.world.history))
        print("\n".join(f"WRONG: {line}" for line in wrong) or "nothing is wrong")
        return bool(wrong)
    first, last = map(int, args.seeds.split(":"))
    begun, bad = time.monotonic(), 0
    with multiprocessing.Pool(args.jobs) as pool:
        for seed, wrong in pool.imap_unordered(judge, range(first, last), chunksize=8):
            if wrong:
                bad += 1
                print(f"seed {seed}: {wrong[0]}{f' (and {len(wrong) - 1} more)' if len(wrong) > 1 else ''}", flush=True)
    spent = time.monotonic() - begun
    print(f"{last - first} histories, {bad} bad, {60 * (last - first) / spent:.0f} a minute")
    return bool(bad)


def judge(seed: int) -> tuple[int, list[str]]:
    """What is wrong with a seed."""
    with quiet():
        return seed, play(seed)[1]


if __name__ == "__main__":
    raise SystemExit(main())
