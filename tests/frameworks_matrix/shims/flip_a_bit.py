"""For tests only: runs an unmodified script on a machine whose memory loses bits.

    torchrun ... tests/frameworks_matrix/shims/flip_a_bit.py --rank 1 --generation 2 --step 45 --when model SCRIPT ...

From that step on, in that generation only, one bit of that rank is flipped in every step: in the `model`'s first
parameter before the loop asks for its next batch, so that what is captured is corrupt; or `at-rest`, in what the
optimizer works on while forward and backward run, so that the capture before it is not.
"""

import argparse
import os
import runpy
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

parser = argparse.ArgumentParser()
parser.add_argument("--rank", required=True)
parser.add_argument("--generation", required=True)
parser.add_argument("--step", type=int, required=True)
parser.add_argument("--when", choices=["model", "at-rest"], required=True)
parser.add_argument("command", nargs=argparse.REMAINDER)
args = parser.parse_args()


class Fault:
    """Counts the steps of a process, and flips."""

    def __init__(self):
        self.step = int(os.environ["LM_RESILIENCY_RESUME_STEP"])
        self.model = self.owned = None
        self.stepped = False
        register_optimizer_step_post_hook(self.optimizer_stepped)
        torch.nn.modules.module.register_module_forward_pre_hook(self.called)
        if args.when == "model":
            fetch = _BaseDataLoaderIter.__next__

            def fetching(iterator):
                self.between_steps(self.model)
                return fetch(iterator)

            _BaseDataLoaderIter.__next__ = fetching

    def optimizer_stepped(self, optimizer, _args, _kwargs):
        """An optimizer of a sub-group counts as well as one of all."""
        self.owned = next((p for group in optimizer.param_groups for p in group["params"]), self.owned)
        self.stepped = True

    def called(self, module, _inputs):
        """The first module called in training is the model, whole."""
        if not module.training:
            return
        if self.model is None and any(True for _ in module.parameters()):
            self.model = next(p for p in module.parameters() if p.requires_grad)
        if args.when == "at-rest":
            self.between_steps(self.owned)

    def between_steps(self, tensor):
        """Once a step."""
        if not self.stepped:
            return
        self.stepped = False
        self.step += 1
        if self.step > args.step:
            part = getattr(tensor, "ds_tensor", tensor)
            part = part.to_local() if hasattr(part, "to_local") else part
            # Of what is no plain tensor, `data` would still count writes, and memory that loses a bit does not.
            part.data.view(-1)[:1].view(torch.uint8)[0] ^= 1


if __name__ == "__main__":
    if (os.environ["RANK"], os.environ["LM_RESILIENCY_GENERATION"]) == (args.rank, args.generation):
        Fault()
    sys.argv = args.command
    runpy.run_path(sys.argv[0], run_name="__main__")
