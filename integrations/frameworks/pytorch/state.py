"""All training state of a plain PyTorch script as one shard, and back into the live objects."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lmr.integrations.frameworks.pytorch import ddp, rng, sharding
from lmr.integrations.frameworks.pytorch.bystanders import Bystanders, tensors_of
from lmr.integrations.frameworks.pytorch.loaders import Loaders
from lmr.integrations.frameworks.pytorch.objects import Objects, replicated
from lmr.integrations.frameworks.pytorch.steps import Steps
from lmr.integrations.gemini import codec
from lmr.integrations.gemini.capture import Change, Collection, ShardReader
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
        steps: which optimizer's steps count.
        degraded: called with what is not protected, and why.
    """

    def __init__(self, objects: Objects, loaders: Loaders, steps: Steps, degraded: Callable[[str, str], None]) -> None:
        self._objects = objects
        self._loaders = loaders
        self._steps = steps
        self._degraded = degraded
        self._bystanders = Bystanders(objects.optimized_ids, degraded)
        self._has_looked = False

    def before_the_first_step(self) -> None:
        """See how the modules are that no optimizer will update; once."""
        if not self._has_looked:
            self._has_looked = True
            self._bystanders.look()

    # Reading ---------------------------------------------------------------------------------------------------

    def collect(self, step: int) -> tuple[Collection, bytes, list[int] | None]:
        """Everything at an iteration boundary: tensors, the tree of everything else, and the peers.

        Raises:
            StateUnknown: an object that cannot be carried over.
        """
        collection = Collection()
        roots = self._objects.roots()
        framework = self._objects.framework
        sections, peers = _shared(replicas(roots) if framework is None else framework.replicated())
        names = _live_tensors(roots, self._objects)
        optimized = self._objects.optimized_ids()
        for name, tensor in names.items():
            collection.add(name, tensor, sections.get(id(tensor), "own"), self._changes(tensor, optimized))
        tree = {
            "aside": self._read_bystanders(collection),
            "format": FORMAT,
            "step": step,
            "primary": self._steps.primary,
            "live": list(names),
            "topology": sharding.topology(names.items()),
            "models": [type(root).__name__ for root in roots],
            "optimizers": {
                str(number): self._read_optimizer(number, optimizer, collection, sections)
                for number, optimizer in self._objects.optimizers.alive()
            },
            "schedulers": self._read_stateful("scheduler", self._objects.schedulers.alive(), collection),
            "scalers": self._read_stateful("scaler", self._objects.scalers.alive(), collection),
            "buckets": self._read_buckets(roots),
            "tracked": {
                name: codec.encode(thing.state_dict(), f"tracked.{name}", lambda t, p: collection.add(p, t, "own"))
                for name, thing in self._objects.tracked.items()
            },
            "position": self._loaders.read(lambda t, p: collection.add(p, t, "own")),
            "framework": self._read_framework(collection),
            "rng": rng.read(),
            "on_device": collection.on_device,
            "parts": collection.parts,
        }
        return collection, codec.dumps(tree), peers

    def _changes(self, tensor: torch.Tensor, optimized: frozenset[int]) -> Change:
        """When a live tensor is written to. Frameworks may copy behind torch's back: there nothing counts as frozen."""
        if tensor.requires_grad:
            return "step" if id(tensor) in optimized else "anywhere"
        is_frozen = isinstance(tensor, nn.Parameter) and id(tensor) not in optimized and not self._objects.framework
        return "never" if is_frozen else "anywhere"

    def _read_bystanders(self, collection: Collection) -> dict[str, list[str]]:
        if self._objects.framework is not None:
            return {}
        aside = {name: tensors_of(module) for name, module in self._bystanders.changed().items()}
        for name, tensors in aside.items():
            for one, tensor in tensors.items():
                collection.add(f"aside.{name}.{one}", tensor, "own")
        return {name: list(tensors) for name, tensors in aside.items()}

    def _read_framework(self, collection: Collection) -> dict[str, Any] | None:
        framework = self._objects.framework
        if framework is None:
            return None
        state = codec.encode(framework.read(), "framework", lambda t, p: collection.add(p, t, "own"))
        return {"name": framework.name, "state": state}

    def _read_optimizer(
        self, number: int, optimizer: torch.optim.Optimizer, collection: Collection, sections: dict[int, Section]
    ) -> dict[str, Any]:
        private = type(optimizer).__name__ in _PRIVATE_STATE
        groups, states = [], {}
        keys = self._objects.parameters_of(optimizer)
        for g, group in enumerate(optimizer.param_groups):
            hyper = {key: value for key, value in group.items() if key != "params"}
            path = f"optimizer.{number}.group.{g}"
            groups.append(codec.encode(hyper, path, lambda t, p: collection.add(p, t, "own")))
            for i, parameter in enumerate(keys[g]):
                state = optimizer.state.get(parameter)
                if state is None:
                    continue
                section: Section = "own" if private else sections.get(id(parameter), "own")
                states[f"{g}.{i}"] = codec.encode(
                    dict(state),
                    f"optimizer.{number}.state.{g}.{i}",
                    lambda t, p, s=section: collection.add(p, t, s, "step"),  # type: ignore[misc]
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

    @staticmethod
    def load_random_state(reader: ShardReader) -> None:
        """Set all random state, and nothing else."""
        rng.write(reader.tree["rng"])

    def load(self, reader: ShardReader, *, buckets: bool, random_state: bool = True) -> None:
        """Overwrite the live state with the captured one.

        Args:
            reader: the shard.
            buckets: also give DDP its gradient buckets back; once is enough.
            random_state: set that, too.

        Raises:
            ShardMismatch: the script's objects are not those that were captured.
        """
        tree = reader.tree
        self._match_framework(tree)
        roots = self._objects.roots()
        live = _live_tensors(roots, self._objects)
        sharding.match_topology(tree["topology"], sharding.topology(live.items()))
        captured = set(tree["live"])
        if captured != set(live):
            odd = sorted(captured ^ set(live))
            raise ShardMismatch("topology_mismatch", f"the model has changed: {', '.join(odd[:5])}")
        for name, tensor in live.items():
            reader.copy_into(name, tensor)
        self._write_bystanders(tree["aside"], reader)
        optimizers = dict(self._objects.optimizers.alive())
        for number, body in tree["optimizers"].items():
            optimizer = _match("optimizer", number, optimizers)
            _write_optimizer(optimizer, self._objects.parameters_of(optimizer), int(number), body, reader)
        reader.wait()
        schedulers, scalers = dict(self._objects.schedulers.alive()), dict(self._objects.scalers.alive())
        for number, body in tree["schedulers"].items():
            _match("scheduler", number, schedulers).load_state_dict(reader.decode(body))
        for number, body in tree["scalers"].items():
            state = reader.decode(body)
            if state:
                _match("scaler", number, scalers).load_state_dict(state)
        if tree["tracked"].keys() != self._objects.tracked.keys():
            odd = sorted(tree["tracked"].keys() ^ self._objects.tracked.keys())
            raise ShardMismatch("topology_mismatch", f"the script tracks other things: {', '.join(odd)}")
        for name, body in tree["tracked"].items():
            self._objects.tracked[name].load_state_dict(reader.decode(body))
        if buckets:
            self._write_buckets(roots, tree["buckets"])
        self._steps.primary = tree["primary"]
        if self._objects.framework is not None:
            self._objects.framework.write(reader.decode(tree["framework"]["state"]))
        if random_state:
            self.load_random_state(reader)

    def _write_bystanders(self, captured: dict[str, list[str]], reader: ShardReader) -> None:
        if not captured:
            return
        present = self._bystanders.expected(captured)
        for name, tensors in captured.items():
            if name not in present:
                kind = name.partition("-")[0]
                self._degraded(f"{kind}, which no optimizer updates", "the restarted script has none, or several alike")
                continue
            live = tensors_of(present[name])
            for one in tensors:
                reader.copy_into(f"aside.{name}.{one}", live[one])

    def _match_framework(self, tree: dict[str, Any]) -> None:
        framework, captured = self._objects.framework, tree["framework"]
        here, there = framework and framework.name, captured and captured["name"]
        if here != there:
            raise ShardMismatch(
                "topology_mismatch", f"captured under {there or 'torch'}, restored under {here or 'torch'}"
            )

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


def named_tensors(roots: list[nn.Module]) -> dict[str, torch.Tensor]:
    """Parameters and buffers of all models by name, each tensor once."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for number, root in enumerate(roots):
        for name, tensor in itertools.chain(root.named_parameters(), root.named_buffers()):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"model.{number}.{name}"] = tensor
    return found


def _live_tensors(roots: list[nn.Module], objects: Objects) -> dict[str, torch.Tensor]:
    """All that is overwritten in place: what belongs to models, then optimized parameters that belong to none."""
    found = named_tensors(roots) if objects.framework is None else dict(objects.framework.tensors())
    seen = {id(tensor) for tensor in found.values()}
    for number, optimizer in objects.optimizers.alive():
        for g, parameters in enumerate(objects.parameters_of(optimizer)):
            for i, parameter in enumerate(parameters):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    found[f"param.{number}.{g}.{i}"] = parameter
    return found


def replicas(roots: list[nn.Module]) -> tuple[list[Any], list[int]] | None:
    """Parameters that DDP or hybrid sharding keep equal, and on which ranks; several kinds of peers count as none."""
    groups: dict[tuple[int, ...], list[Any]] = {}
    for root in roots:
        wrapper = replicated(root)
        if wrapper is not None:
            ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
            shared = [p for name, p in wrapper.module.named_parameters() if name not in ignored]
            groups.setdefault(tuple(ddp.peers(wrapper)), []).extend(shared)
        for shared, ranks in sharding.peers(root):
            groups.setdefault(tuple(ranks), []).extend(shared)
    if len(groups) != 1:
        return None
    ((peers, parameters),) = groups.items()
    return parameters, list(peers)


def _shared(replicated: tuple[list[Any], list[int]] | None) -> tuple[dict[int, Section], list[int] | None]:
    """The sections of parameters that are equal on the ranks named."""
    if replicated is None:
        return {}, None
    parameters, peers = replicated
    return {id(p): "shared" for p in parameters}, peers


def _match(kind: str, number: str, alive: dict[int, Any]) -> Any:
    one = alive.get(int(number))
    if one is None:
        raise ShardMismatch("topology_mismatch", f"the script has no {kind} number {number} any more")
    return one


def _write_optimizer(
    optimizer: torch.optim.Optimizer,
    keys: list[list[torch.Tensor]],
    number: int,
    body: dict[str, Any],
    reader: ShardReader,
) -> None:
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
    before = dict(optimizer.state)
    optimizer.state.clear()
    for place, captured in body["states"].items():
        g, i = (int(part) for part in place.split("."))
        if g >= len(keys) or i >= len(keys[g]):
            raise ShardMismatch("topology_mismatch", f"optimizer {number} has no parameter {place} any more")
        parameter = keys[g][i]
        optimizer.state[parameter] = _restored(reader, captured, parameter, before.get(parameter, {}))


def _restored(
    reader: ShardReader, captured: dict[str, Any], parameter: torch.Tensor, present: dict[str, Any]
) -> dict[str, Any]:
    """A parameter's state, in the tensors it already has where they fit: others may hold on to those."""
    if any(key.startswith("$") for key in captured):
        return dict(reader.decode(captured, parameter))
    state = {}
    for key, body in captured.items():
        name = body.get("$tensor") if isinstance(body, dict) else None
        old = present.get(key)
        if name is not None and isinstance(old, torch.Tensor) and reader.fits(name, old):
            reader.copy_into(name, old)
            state[key] = old
        elif name is not None:
            state[key] = reader.fresh(name, parameter, later=True)
        else:
            state[key] = reader.decode(body, parameter)
    return state
