"""All training state of a plain PyTorch script as one shard, and back into the live objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from lmr.integrations.frameworks.pytorch import ddp, rng
from lmr.integrations.frameworks.pytorch.loaders import Loaders
from lmr.integrations.frameworks.pytorch.objects import Objects, replicated
from lmr.integrations.gemini import codec
from lmr.integrations.gemini.capture import Collection, ShardReader
from lmr.integrations.gemini.errors import ShardMismatch
from lmr.integrations.gemini.shard import Section

FORMAT = 1
_PRIVATE_STATE = frozenset({"ZeroRedundancyOptimizer"})
"""Optimizers whose state differs between data-parallel peers although their parameters do not."""


class TrainingState:
    """Reads and writes the state of a script's objects.

    Args:
        objects: the script's objects.
        loaders: where its loaders stand.
        degraded: called with what is not protected, and why.
    """

    def __init__(self, objects: Objects, loaders: Loaders, degraded: Callable[[str, str], None]) -> None:
        self._objects = objects
        self._loaders = loaders
        self._degraded = degraded

    # Reading ---------------------------------------------------------------------------------------------------

    def collect(self, step: int) -> tuple[Collection, bytes, list[int] | None]:
        """Everything at an iteration boundary: tensors, the tree of everything else, and the peers.

        Raises:
            StateUnknown: an object that cannot be carried over.
        """
        collection = Collection()
        roots = self._objects.roots()
        sections, peers = _sections(roots)
        names = _live_tensors(roots, self._objects)
        for name, tensor in names.items():
            collection.add(name, tensor, sections.get(id(tensor), "own"))
        tree = {
            "format": FORMAT,
            "step": step,
            "models": [type(root).__name__ for root in roots],
            "optimizers": {
                str(number): self._read_optimizer(number, optimizer, collection, sections)
                for number, optimizer in self._objects.optimizers.alive()
            },
            "schedulers": self._read_stateful("scheduler", self._objects.schedulers.alive(), collection),
            "scalers": self._read_stateful("scaler", self._objects.scalers.alive(), collection),
            "buckets": self._read_buckets(roots),
            "position": self._loaders.read(),
            "rng": rng.read(),
            "on_device": collection.on_device,
        }
        return collection, codec.dumps(tree), peers

    @staticmethod
    def _read_optimizer(
        number: int, optimizer: torch.optim.Optimizer, collection: Collection, sections: dict[int, Section]
    ) -> dict[str, Any]:
        private = type(optimizer).__name__ in _PRIVATE_STATE
        groups, states = [], {}
        for g, group in enumerate(optimizer.param_groups):
            hyper = {key: value for key, value in group.items() if key != "params"}
            path = f"optimizer.{number}.group.{g}"
            groups.append(codec.encode(hyper, path, lambda t, p: collection.add(p, t, "own")))
            for i, parameter in enumerate(group["params"]):
                if parameter not in optimizer.state:
                    continue
                section: Section = "own" if private else sections.get(id(parameter), "own")
                states[f"{g}.{i}"] = codec.encode(
                    dict(optimizer.state[parameter]),
                    f"optimizer.{number}.state.{g}.{i}",
                    lambda t, p, s=section: collection.add(p, t, s),  # type: ignore[misc]
                )
        return {"class": type(optimizer).__name__, "groups": groups, "states": states}

    @staticmethod
    def _read_stateful(kind: str, alive: list[tuple[int, Any]], collection: Collection) -> dict[str, Any]:
        return {
            str(number): codec.encode(one.state_dict(), f"{kind}.{number}", lambda t, p: collection.add(p, t, "own"))
            for number, one in alive
        }

    def _read_buckets(self, roots: list[nn.Module]) -> list[Any]:
        found: list[Any] = []
        for root in roots:
            wrapper = replicated(root)
            try:
                found.append(None if wrapper is None else ddp.read(wrapper))
            except ddp.LayoutUnknown as error:
                self._degraded("bitwise equality after a restart", str(error))
                found.append(None)
        return found

    # Writing ---------------------------------------------------------------------------------------------------

    def load(self, reader: ShardReader, *, buckets: bool) -> None:
        """Overwrite the live state with the captured one.

        Args:
            reader: the shard.
            buckets: also give DDP its gradient buckets back; once is enough.

        Raises:
            ShardMismatch: the script's objects are not those that were captured.
        """
        tree = reader.tree
        roots = self._objects.roots()
        live = _live_tensors(roots, self._objects)
        captured = {name for name in reader.entries if name.startswith(("model.", "param."))}
        if captured != set(live):
            odd = sorted(captured ^ set(live))
            raise ShardMismatch("topology_mismatch", f"the model has changed: {', '.join(odd[:5])}")
        for name, tensor in live.items():
            reader.copy_into(name, tensor)
        optimizers = dict(self._objects.optimizers.alive())
        for number, body in tree["optimizers"].items():
            _write_optimizer(_match("optimizer", number, optimizers), int(number), body, reader)
        schedulers, scalers = dict(self._objects.schedulers.alive()), dict(self._objects.scalers.alive())
        for number, body in tree["schedulers"].items():
            _match("scheduler", number, schedulers).load_state_dict(reader.decode(body))
        for number, body in tree["scalers"].items():
            state = reader.decode(body)
            if state:
                _match("scaler", number, scalers).load_state_dict(state)
        if buckets:
            self._write_buckets(roots, tree["buckets"])
        rng.write(tree["rng"])

    def _write_buckets(self, roots: list[nn.Module], captured: list[Any]) -> None:
        for root, layout in zip(roots, captured, strict=True):
            wrapper = replicated(root)
            if wrapper is None or layout is None:
                continue
            try:
                if ddp.read(wrapper) != layout:
                    ddp.write(wrapper, layout)
            except ddp.LayoutUnknown as error:
                self._degraded("bitwise equality after a restart", str(error))


def _live_tensors(roots: list[nn.Module], objects: Objects) -> dict[str, torch.Tensor]:
    """Parameters and buffers of all models, then optimized parameters that belong to none; each tensor once."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()

    def take(named: Iterator[tuple[str, torch.Tensor]], prefix: str) -> None:
        for name, tensor in named:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{prefix}.{name}"] = tensor

    for number, root in enumerate(roots):
        take(root.named_parameters(), f"model.{number}")
        take(root.named_buffers(), f"model.{number}")
    for number, optimizer in objects.optimizers.alive():
        for g, group in enumerate(optimizer.param_groups):
            take(((str(i), p) for i, p in enumerate(group["params"])), f"param.{number}.{g}")
    return found


def _sections(roots: list[nn.Module]) -> tuple[dict[int, Section], list[int] | None]:
    """Which parameters data-parallel peers share, and who the peers are; several kinds of peers count as none."""
    groups: dict[tuple[int, ...], list[Any]] = {}
    for root in roots:
        wrapper = replicated(root)
        if wrapper is not None:
            ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
            shared = [p for name, p in wrapper.module.named_parameters() if name not in ignored]
            groups.setdefault(tuple(ddp.peers(wrapper)), []).extend(shared)
    if len(groups) != 1:
        return {}, None
    ((peers, parameters),) = groups.items()
    return {id(p): "shared" for p in parameters}, list(peers)


def _match(kind: str, number: str, alive: dict[int, Any]) -> Any:
    one = alive.get(int(number))
    if one is None:
        raise ShardMismatch("topology_mismatch", f"the script has no {kind} number {number} any more")
    return one


def _write_optimizer(optimizer: torch.optim.Optimizer, number: int, body: dict[str, Any], reader: ShardReader) -> None:
    groups = optimizer.param_groups
    if len(groups) != len(body["groups"]) or type(optimizer).__name__ != body["class"]:
        raise ShardMismatch("topology_mismatch", f"optimizer {number} has changed")
    for group, captured in zip(groups, body["groups"], strict=True):
        for key, value in reader.decode(captured).items():
            present = group.get(key)
            if isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor):
                present.copy_(value)
            else:
                group[key] = value
    optimizer.state.clear()
    for place, captured in body["states"].items():
        g, i = (int(part) for part in place.split("."))
        if g >= len(groups) or i >= len(groups[g]["params"]):
            raise ShardMismatch("topology_mismatch", f"optimizer {number} has no parameter {place} any more")
        parameter = groups[g]["params"][i]
        optimizer.state[parameter] = reader.decode(captured, parameter)
