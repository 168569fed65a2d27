"""For tests only: runs an unmodified Megatron script on a machine without a GPU.

    torchrun ... tests/frameworks_matrix/shims/megatron_on_cpu.py SCRIPT ARGUMENTS

CUDA devices become the CPU and CUDA's random state becomes torch's. What runs here says nothing about streams, fused
kernels or memory of a real device.
"""

import contextlib
import runpy
import sys

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):
    """Sends what names a CUDA device to the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and (isinstance(device, int) or "cuda" in str(device)):
            kwargs["device"] = CPU
        if func is torch.Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")  # asked for in assertions
        return result


class Stream:
    """No stream; everything is in order here."""

    def __init__(self, *args, **kwargs):
        pass

    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass


def install():
    cuda = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.set_device = lambda device: None
    cuda.get_rng_state = lambda device=None: torch.get_rng_state()
    cuda.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    cuda.manual_seed = torch.manual_seed
    cuda.Stream = cuda.Event = Stream
    cuda.current_stream = cuda.default_stream = lambda device=None: Stream()
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.synchronize = lambda device=None: None
    OnCpu().__enter__()
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda device=None, clone=False, graph_safe=False: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    install()
    runpy.run_path(sys.argv[0], run_name="__main__")
