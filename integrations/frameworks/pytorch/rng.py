"""Random state: Python, NumPy if it is loaded, torch on the CPU, and CUDA if it is in use."""

from __future__ import annotations

import array
import base64
import random
import sys
from typing import Any

import torch


def read() -> dict[str, Any]:
    """All global random states as JSON."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, _text(array.array("I", internal).tobytes()), gauss],
        "torch": of_tensor(torch.get_rng_state()),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        if name == "MT19937":
            state["numpy"] = [_text(keys.tobytes()), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_initialized() and torch.cuda.is_available():  # type: ignore[no-untyped-call]
        state["cuda"] = [of_tensor(one) for one in torch.cuda.get_rng_state_all()]
    return state


def write(state: dict[str, Any]) -> None:
    """Set all global random states to what `read` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(array.array("I", base64.b64decode(internal))), gauss))
    torch.set_rng_state(to_tensor(state["torch"]))
    if "numpy" in state:
        import numpy as np

        keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state(
            ("MT19937", np.frombuffer(base64.b64decode(keys), dtype=np.uint32), position, has_gauss, cached)
        )
    if "cuda" in state:
        torch.cuda.set_rng_state_all([to_tensor(one) for one in state["cuda"]])


def of_tensor(state: torch.Tensor) -> str:
    """A generator's state as text."""
    return _text(state.cpu().numpy().tobytes())


def to_tensor(text: str) -> torch.Tensor:
    """A generator's state from text."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
