"""A worker without torch, for quick tests: says how it was started, then beats until it is told to end.

It writes one line a start and one a beat, each with the time, so that a test can see who ran when.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--fail", default="", help="RANK:GENERATION,...: it raises at its end; `*` is any of them")
parser.add_argument("--slow-end", default="", help="RANK:SECONDS: this rank tears down for so long")
parser.add_argument("--stuck-in-c", action="store_true", help="SIGTERM is handled in Python, which never runs again")
args = parser.parse_args()

rank, generation = os.environ["RANK"], os.environ.get("LM_RESILIENCY_GENERATION")
log = Path(f"{args.out}.rank{rank}.jsonl").open("a", buffering=1)  # noqa: SIM115
started = {
    "started": generation,
    "pid": os.getpid(),
    "master": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    "world": os.environ["WORLD_SIZE"],
    "step": int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "-1")),
}
log.write(json.dumps(started) + "\n")
print(f"rank {rank} works in generation {generation}", flush=True)


if args.stuck_in_c:
    signal.signal(signal.SIGTERM, lambda *_: None)
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # never returns, and no signal ends it
while not any(Path(f"{args.out}.end{which}").exists() for which in ("", rank)):
    log.write(json.dumps({"beat": time.monotonic_ns(), "pid": os.getpid(), "generation": generation}) + "\n")
    time.sleep(0.02)


def matches(pattern: str) -> bool:
    which_rank, _, which_generation = pattern.partition(":")
    return which_rank in ("*", rank) and which_generation in ("*", str(generation))


if any(matches(pattern) for pattern in args.fail.split(",") if pattern):
    raise KeyError(f"no weight for layer {int(rank) + 1}")
slow_rank, _, seconds = args.slow_end.partition(":")
if slow_rank == rank:
    time.sleep(float(seconds))
log.write(json.dumps({"finished": generation}) + "\n")
sys.exit(0)
