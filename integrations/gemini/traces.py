"""What tells whether tensors have been written to: version counters, addresses, and a sample of their elements.

torch counts writes in a tensor's version. Writes through `.data`, and by libraries that take a raw pointer, are not
counted, and a new tensor may lie where an old one lay; so elements spread over each tensor are compared, too. That
finds what writes to whole tensors, as averaging, clipping and swapping weights do; a few elements changed through
`.data` it may miss. Elements on accelerators are not looked at: reading them would wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SAMPLE_ELEMENTS = 16
"""Elements of each tensor that are compared."""


@dataclass(frozen=True)
class Trace:
    """How tensors looked at one moment."""

    versions: list[int]
    addresses: list[int]
    samples: list[torch.Tensor]

    def same_as(self, other: Trace) -> bool:
        """Whether nobody has written in between, as far as can be told."""
        return (
            self.versions == other.versions
            and self.addresses == other.addresses
            and len(self.samples) == len(other.samples)
            # As bytes: not-a-number is equal to nothing, and a zero is not its negative.
            and all(torch.equal(one, two) for one, two in zip(self.samples, other.samples, strict=True))
        )


class Tracer:
    """Takes traces of one list of tensors again and again; the views it samples through are kept from time to time."""

    def __init__(self) -> None:
        self._key: list[tuple[int, int]] = []
        self._views: list[list[torch.Tensor]] = []

    def take(self, tensors: list[torch.Tensor], owners: list[torch.Tensor]) -> Trace | None:
        """How these tensors look now; None when that cannot be told of one of them.

        Args:
            tensors: plain ones.
            owners: whom the script writes to: of a DTensor's local part the DTensor, else the tensor itself.
        """
        try:
            versions = [tensor._version for tensor in tensors]
            versions += [one._version for one, part in zip(owners, tensors, strict=True) if one is not part]
            addresses = [tensor.data_ptr() for tensor in tensors]
            key = list(zip(map(id, tensors), addresses, strict=True))
            if key != self._key:
                self._key, self._views = key, _views(tensors)
            with torch.no_grad():
                return Trace(versions, addresses, [torch.cat(views).view(torch.uint8) for views in self._views])
        except RuntimeError:  # made in inference mode, or of a type that cannot be sampled
            return None


def _views(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Views of a few elements of each tensor, by type of element."""
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.numel() == 0:
            continue
        plain = tensor.detach()
        if plain.is_contiguous():
            apart = max(1, plain.numel() // SAMPLE_ELEMENTS)
            view = plain.view(-1)[::apart][:SAMPLE_ELEMENTS]
        else:
            view = plain[tuple(slice(0, 1) for _ in plain.shape)].reshape(-1)
        found.setdefault(tensor.dtype, []).append(view)
    return list(found.values())
