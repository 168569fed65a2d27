"""The script's own checkpoints, saved by `torch.distributed.checkpoint`, as the last place state comes back from.

Where the script calls `dcp.save` or `dcp.async_save`, what its checkpoint lacks to restart this very step goes along
under keys that begin with `lm_resiliency.`: random states, positions, schedulers, and tensors it did not name. Tensors
it did name are not written twice. The run hears of the checkpoint when it is complete. The same step is captured and
checked, which tells whether the checkpoint can be trusted. Should every copy in memory and on the nodes' disks be gone,
the state is put together from there. Nothing here ever deletes a checkpoint.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lmr.integrations.gemini.capture import Collection, view
from lmr.integrations.gemini.errors import DurableUnreadable
from lmr.integrations.gemini.shard import Layout, ShardMeta, Wanted

if TYPE_CHECKING:
    from lmr.integrations.frameworks.pytorch.session import Session

PREFIX = "lm_resiliency."
FORMAT = 1


def attach() -> None:
    """Follow the saves of this process; called once, right after `torch.distributed.checkpoint` was imported."""
    from lmr.integrations.frameworks import pytorch

    session = pytorch.current()
    if session is not None and session.protects_durably:
        _follow(session)


def _follow(session: Session) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict_saver

    inside = threading.local()

    def wrap(name: str, when_complete: Callable[[Any, Callable[[], None]], None]) -> None:
        @functools.wraps(getattr(checkpoint, name))
        def saving(state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            original = getattr(state_dict_saver, name)  # others follow it there
            if not session.mine or getattr(inside, "save", False):
                return original(state_dict, *args, **kwargs)
            where = _guarded(session, lambda: _place(kwargs), None) if not args else None
            step = session.steps.completed
            if where is not None:
                state_dict = _guarded(session, lambda: _with_rest(session, step, dict(state_dict), kwargs), state_dict)
                _guarded(session, lambda: session.saving(step), None)
            inside.save = True
            try:
                result = original(state_dict, *args, **kwargs)
            finally:
                inside.save = False
            if where is not None and _is_whole(session, state_dict):
                when_complete(result, lambda: session.persisted(step, where))
            return result

        setattr(checkpoint, name, saving)

    wrap("save", lambda _metadata, publish: publish())
    wrap("async_save", _after_upload)


def _after_upload(response: Any, publish: Callable[[], None]) -> None:
    future = getattr(response, "upload_completion", response)

    def ended(done: Any) -> None:
        if not done.cancelled() and done.exception() is None:
            publish()

    future.add_done_callback(ended)


def _guarded(session: Session, action: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return action()
    except Exception as error:  # noqa: BLE001  protection may fail, the script's checkpoint may not
        session.degraded("durable checkpoints", repr(error))
        return otherwise


def _place(kwargs: dict[str, Any]) -> str | None:
    """The folder a save goes to; None when it goes through a writer we could not read from."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    where, writer = kwargs.get("checkpoint_id"), kwargs.get("storage_writer")
    if writer is not None:
        if not isinstance(writer, FileSystemWriter):
            return None
        where = where if where is not None else writer.path
    if where is None or "://" in os.fspath(where):
        return None
    return str(Path(where).absolute())


def _is_whole(session: Session, state_dict: dict[str, Any]) -> bool:
    return _meta_key(session.rank) in state_dict


def _meta_key(rank: int) -> str:
    return f"{PREFIX}{rank}.meta"


# Writing -----------------------------------------------------------------------------------------------------------


def _with_rest(session: Session, step: int, state_dict: dict[str, Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The script's dictionary, its stateful objects read once, and what it lacks."""
    from torch.distributed.checkpoint.stateful import Stateful

    read = {key: one.state_dict() if isinstance(one, Stateful) else one for key, one in state_dict.items()}
    if step == 0:
        return read
    collection, tree, peers = session.collect(step)
    named = {} if kwargs.get("planner") is not None else _named(read)
    everybody = list(range(dist.get_world_size())) if dist.is_initialized() else [session.rank]
    return {**read, **rest(session.rank, collection, tree, named, peers or [session.rank], everybody)}


Identity = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]


def _identity(tensor: torch.Tensor) -> Identity:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


def _named(state_dict: dict[str, Any]) -> dict[Identity, str]:
    """Under which key of the checkpoint each plain tensor of the script will be."""
    try:
        from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    except ImportError:  # private: without it, tensors are written twice
        return {}
    flat, _ = flatten_state_dict(state_dict)
    return {_identity(one): key for key, one in flat.items() if type(one) in (torch.Tensor, torch.nn.Parameter)}


def rest(
    rank: int,
    collection: Collection,
    tree: bytes,
    named: dict[Identity, str],
    peers: list[int],
    everybody: list[int],
) -> dict[str, torch.Tensor]:
    """What goes into the checkpoint besides.

    A key is written once, by whichever rank: only what all ranks that use it hold alike may have one key.

    Args:
        rank: global rank.
        collection: all tensors of the state.
        tree: everything else.
        named: keys of the tensors that are in the checkpoint anyway.
        peers: the ranks that hold the shared tensors alike, this one among them.
        everybody: all ranks of the job.
    """
    keys: dict[str, str] = {}
    found: dict[str, torch.Tensor] = {}
    rows = []
    for name, tensor, section in zip(collection.names, collection.tensors, collection.sections, strict=True):
        rows.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), section])
        if not tensor.numel():
            continue
        alike = sorted(peers) if section == "shared" else [rank]
        key = named.get(_identity(tensor)) if alike == everybody else None
        if key is None:
            key = f"{PREFIX}{alike[0]}.{name}"
            found[key] = tensor.detach()
        keys[name] = key
    body = {"format": FORMAT, "rank": rank, "tensors": rows, "keys": keys, "tree": tree.decode()}
    found[_meta_key(rank)] = torch.frombuffer(bytearray(json.dumps(body).encode()), dtype=torch.uint8)
    return found


# Reading -----------------------------------------------------------------------------------------------------------


def read(checkpoint_id: str, rank: int) -> tuple[ShardMeta, mmap.mmap]:
    """Put this rank's shard together from a checkpoint.

    Raises:
        DurableUnreadable: the checkpoint is gone, incomplete, damaged or of another job.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return _read(checkpoint_id, rank)
    except CheckpointException as error:  # no `Exception`: torch means it to end the script
        causes = [cause for cause, _ in error.failures.values()]
        gone = any(isinstance(cause, FileNotFoundError) for cause in causes)
        why = "missing" if gone else "digest_mismatch"
        raise DurableUnreadable(why, "; ".join(map(repr, causes)), checkpoint_id) from error
    except FileNotFoundError as error:
        raise DurableUnreadable("missing", str(error), checkpoint_id) from error
    except Exception as error:
        raise DurableUnreadable("digest_mismatch", repr(error), checkpoint_id) from error


def _read(checkpoint_id: str, rank: int) -> tuple[ShardMeta, mmap.mmap]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    reader = FileSystemReader(checkpoint_id)
    described: Any = reader.read_metadata().state_dict_metadata.get(_meta_key(rank))
    if described is None:
        raise FileNotFoundError(f"rank {rank} has no state there")
    raw = torch.empty(described.size, dtype=torch.uint8)
    _load({_meta_key(rank): raw}, checkpoint_id)
    body = json.loads(raw.numpy().tobytes())
    layout = Layout([_wanted(*row) for row in body["tensors"]])
    tree = body["tree"].encode()
    meta = layout.meta(rank, len(tree))
    memory = mmap.mmap(-1, max(1, meta.total_bytes))
    memory[meta.tensor_bytes : meta.tensor_bytes + meta.entries_bytes] = layout.entries_json
    memory[meta.total_bytes - meta.tree_bytes : meta.total_bytes] = tree
    keys = body["keys"]
    _load({keys[entry.name]: view(memory, entry) for entry in layout.entries if entry.name in keys}, checkpoint_id)
    return meta, memory


def _wanted(name: str, dtype: str, shape: list[int], section: Any) -> Wanted:
    nbytes = torch.Size(shape).numel() * getattr(torch, dtype).itemsize
    return Wanted(name, dtype, tuple(shape), nbytes, section)


def _load(state_dict: dict[str, torch.Tensor], checkpoint_id: str) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load

    # Each rank reads what is its own: no collective, which a rank that fails would leave the others in.
    load(state_dict, checkpoint_id=checkpoint_id, no_dist=True)
