"""For tests only: runs an unmodified script slowly until a file appears, so that a test can act meanwhile.

    torchrun ... tests/torchrun/failures/paced.py --until FILE --hold OTHER [--poison-from STEP] SCRIPT ...

While the other file is there, no step ends. With `--poison-from`, state captured in the first generation is not a
number from that step on: one element of each trained parameter is NaN while the loop asks for its next batch, which is
when state is captured, and has its value again afterwards. Training itself goes on undisturbed.
"""

import argparse
import os
import runpy
import sys
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

PACE_S = 0.5

parser = argparse.ArgumentParser()
parser.add_argument("--until", type=Path, required=True)
parser.add_argument("--hold", type=Path, required=True)
parser.add_argument("--poison-from", type=int, default=None)
parser.add_argument("command", nargs=argparse.REMAINDER)
args = parser.parse_args()
fetch = _BaseDataLoaderIter.__next__
steps, trained = 0, []


def stepped(optimizer, _args, _kwargs):
    global steps
    steps += 1
    trained[:] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not args.until.exists():
        time.sleep(PACE_S)
    while args.hold.exists():
        time.sleep(PACE_S / 10)


def fetch_while_poisoned(iterator):
    if steps < args.poison_from:
        return fetch(iterator)
    parts = [p.data.to_local() if hasattr(p.data, "to_local") else p.data for p in trained]
    firsts = [part.view(-1)[:1] for part in parts if part.numel()]
    sound = [first.clone() for first in firsts]
    for first in firsts:
        first.fill_(torch.nan)
    try:
        return fetch(iterator)
    finally:
        for first, value in zip(firsts, sound, strict=True):
            first.copy_(value)


if __name__ == "__main__":
    register_optimizer_step_post_hook(stepped)
    if args.poison_from is not None and os.environ.get("LM_RESILIENCY_GENERATION") == "0":
        _BaseDataLoaderIter.__next__ = fetch_while_poisoned
    sys.argv = args.command
    runpy.run_path(sys.argv[0], run_name="__main__")
