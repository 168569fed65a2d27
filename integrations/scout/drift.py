"""Configuration drift: what differs between nodes that should be set up alike.

Each node tells a digest for every key when it joins and when its workers start; the run compares. A strict majority
says what is right; without one, what the earlier node has. A driver or library updated on one machine of many gives
errors that look like anything but that.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lmr.integrations.frameworks.registry import version_of
from lmr.integrations.scout.detector_policy import DriftPolicy

PACKAGES = (
    "torch",
    "numpy",
    "triton",
    "deepspeed",
    "megatron-core",
    "torchtitan",
    "transformers",
    "lm-resiliency-engine",
)
ENVIRONMENT = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "CUBLAS_", "PYTORCH_", "OMP_", "MKL_", "UCX_", "FI_")
"""Prefixes of variables that change what is computed or how it travels."""
OWN_TO_A_NODE = (
    "TORCHELASTIC_",
    "TORCH_ELASTIC_",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "NCCL_DEBUG_FILE",
)
"""Names and prefixes that differ between nodes by their nature."""
_CODE_MOST_BYTES = 16 * 1024 * 1024


def configuration(code: Path | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This node's configuration: a short digest for every key.

    Args:
        code: the training script, or None when it is a module.
        environ: of the agent, which its workers inherit.
    """
    known = {"machine": platform.machine(), "python": platform.python_version(), "byteorder": sys.byteorder}
    known |= {f"package.{name}": found for name in PACKAGES if (found := version_of(name)) is not None}
    known |= {f"env.{name}": value for name, value in environ.items() if _matters(name)}
    driver = _text(Path("/proc/driver/nvidia/version"))
    if driver is not None:
        known["driver.nvidia"] = driver
    if code is not None:
        known["code"] = _text(code) or "missing"
    return {key: hashlib.sha256(value.encode()).hexdigest()[:16] for key, value in known.items()}


def _matters(name: str) -> bool:
    return name.startswith(ENVIRONMENT) and not name.startswith(OWN_TO_A_NODE)


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_CODE_MOST_BYTES).decode(errors="replace")
    except OSError:
        return None


@dataclass(frozen=True)
class Drift:
    """The keys in which a node differs from what is right."""

    node: str
    keys: tuple[str, ...]


@dataclass
class DriftDetector:
    """Compares the configurations of the run's nodes.

    Args:
        policy: which keys may differ.
    """

    policy: DriftPolicy
    _told: dict[str, dict[str, str]] = field(default_factory=dict)
    """In the order of joining."""
    _said: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def tell(self, node: str, keys: Mapping[str, str]) -> list[Drift]:
        """A node's configuration, as it joins or as its workers start; the drift that is new with it."""
        self._told[node] = {str(key): str(value) for key, value in keys.items()}
        return self._news()

    def forget(self, node: str) -> None:
        """A node has left; with a new life it is compared anew."""
        self._told.pop(node, None)
        self._said.pop(node, None)

    def _news(self) -> list[Drift]:
        if not self.policy.enabled or len(self._told) < 2:
            return []
        odd: dict[str, list[str]] = {}
        for key in sorted(set().union(*self._told.values()) - set(self.policy.ignored_keys)):
            values = {node: told.get(key) for node, told in self._told.items()}
            value, count = Counter(values.values()).most_common(1)[0]
            right = value if 2 * count > len(values) else next(iter(values.values()))
            for node, theirs in values.items():
                if theirs != right:
                    odd.setdefault(node, []).append(key)
        news = [Drift(node, tuple(keys)) for node, keys in odd.items() if self._said.get(node) != tuple(keys)]
        self._said = {node: tuple(keys) for node, keys in odd.items()}
        return news
