"""Which adapter attaches after which module was imported, and the versions it was tested with.

Nothing here imports a framework: whether one is installed, and in which version, is read from its metadata.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import metadata

FURTHER = "LM_RESILIENCY_ADAPTERS"
"""Environment variable that names adapters of other packages: `imported.module=their.adapter,...`."""


@dataclass(frozen=True)
class Support:
    """Versions of one framework an adapter was tested with."""

    name: str
    distribution: str
    oldest: str
    newest: str


_RELEASE = re.compile(r"\d+(\.\d+)*")

ADAPTERS: dict[str, str] = {
    "torch": "lmr.integrations.frameworks.pytorch",
    "torch.distributed.checkpoint": "lmr.integrations.frameworks.pytorch.durable",
    "torchdata.stateful_dataloader.stateful_dataloader": "lmr.integrations.frameworks.pytorch.torchdata_loaders",
    "deepspeed": "lmr.integrations.frameworks.deepspeed",
    "megatron.core.optimizer": "lmr.integrations.frameworks.megatron",
    "torchtitan.components.checkpoint": "lmr.integrations.frameworks.torchtitan",
    "transformers.trainer": "lmr.integrations.frameworks.transformers",
    "accelerate.data_loader": "lmr.integrations.frameworks.accelerate",
    "lightning.pytorch.loops.fit_loop": "lmr.integrations.frameworks.lightning",
    "pytorch_lightning.loops.fit_loop": "lmr.integrations.frameworks.pytorch_lightning",
}
"""Imported module -> adapter module, which offers `attach() -> None`."""

SUPPORT: dict[str, Support] = {
    "torch": Support("PyTorch", "torch", "2.13.0", "2.13.0"),
    "deepspeed": Support("DeepSpeed", "deepspeed", "0.19.8", "0.19.8"),
    "megatron.core.optimizer": Support("Megatron Core", "megatron-core", "0.16.1", "0.16.1"),
    "torchtitan.components.checkpoint": Support("TorchTitan", "torchtitan", "0.2.2", "0.2.2"),
    "transformers.trainer": Support("Hugging Face Trainer", "transformers", "5.24.0", "5.24.0"),
    "accelerate.data_loader": Support("Accelerate", "accelerate", "1.15.0", "1.15.0"),
    "lightning.pytorch.loops.fit_loop": Support("Lightning", "lightning", "2.6.6", "2.6.6"),
}
"""Imported module -> tested versions."""


def adapters() -> dict[str, str]:
    """Our adapters and those the environment names, which win over ours.

    Raises:
        ValueError: the variable is not a list of `imported.module=their.adapter`.
    """
    found = dict(ADAPTERS)
    for pair in filter(None, os.environ.get(FURTHER, "").split(",")):
        module, equals, adapter = (part.strip() for part in pair.partition("="))
        if not (module and equals and adapter):
            raise ValueError(f"{FURTHER}: {pair!r} is not of the form imported.module=their.adapter")
        found[module] = adapter
    return found


def installed() -> dict[str, str]:
    """Version by name of each known framework that is installed. Imports none of them."""
    found = {}
    for support in SUPPORT.values():
        version = version_of(support.distribution)
        if version is not None:
            found[support.name] = version
    return found


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, as its files say it now; None where there are no metadata."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def judge(support: Support, version: str) -> str | None:
    """What is to be said about a framework of this version; None when it is a tested one.

    A newer version attaches with this as a warning, an older one does not attach: see `is_too_old`.
    """
    if is_too_old(support, version):
        return f"{support.name} {version} is older than {support.oldest}, the oldest supported; {_range(support)}"
    if _release(version) > _release(support.newest):
        return f"{support.name} {version} is newer than {support.newest}, the newest tested; {_range(support)}"
    return None


def tested(module: str) -> str:
    """Which versions of the framework of an imported module were tested, for a message; empty when it is not ours."""
    support = SUPPORT.get(module)
    if support is None:
        return ""
    here = installed().get(support.name, "unknown")
    return f"installed: {support.name} {here}; {_range(support)}"


def _range(support: Support) -> str:
    same = support.oldest == support.newest
    return f"tested: {support.oldest}" if same else f"tested: {support.oldest} to {support.newest}"


def is_too_old(support: Support, version: str) -> bool:
    """Whether this version is below the supported range."""
    return _release(version) < _release(support.oldest)


def _release(version: str) -> tuple[int, ...]:
    match = _RELEASE.match(version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
