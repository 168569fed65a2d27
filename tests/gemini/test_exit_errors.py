"""What a dead trainer's error is taken for, and when two errors count as the same."""

from __future__ import annotations

import pytest

from lmr.integrations.torchrun import exit_errors

DistBackendError = type("DistBackendError", (RuntimeError,), {})
DistNetworkError = type("DistNetworkError", (RuntimeError,), {})
OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:56204. GLHF!"
READ = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.3]:7: Connection reset by peer"
WAIT = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"
NCCL = (
    "NCCL error in: ../ProcessGroupNCCL.cpp:1333, remote process exited or there was a network error, ncclRemoteError"
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError(GLOO), "collective"),
        (RuntimeError(READ), "collective"),
        (RuntimeError(WAIT), "collective"),
        (RuntimeError("Socket Timeout"), "collective"),
        (RuntimeError("Broken pipe"), "collective"),
        (DistBackendError(NCCL), "collective"),
        (DistNetworkError("The client socket has failed to connect to any network address"), "collective"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (ValueError("loss is nan at step 12"), "nonfinite"),
        (FloatingPointError("invalid value"), "nonfinite"),
        (RuntimeError("Function 'MulBackward0' returned nan values in its 0th output."), "nonfinite"),
        (RuntimeError("The total norm for gradients is non-finite, so it cannot be clipped"), "nonfinite"),
        (ValueError("x"), "exception"),
        (KeyError("information"), "exception"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x16 and 32x5)"), "exception"),
        (ConnectionResetError("Connection reset by peer"), "exception"),  # the user's own client
        (ValueError("could not parse: Connection refused"), "exception"),
        (FileNotFoundError("No such file: loss_info.txt"), "exception"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value)[:60],
)
def test_kind(error: BaseException, kind: str) -> None:
    assert exit_errors.kind_of(error) == kind


def test_an_error_raised_from_a_collective_one_is_collective() -> None:
    error = ValueError("training failed")
    error.__cause__ = RuntimeError(GLOO)
    assert exit_errors.kind_of(error) == "collective"


def _raise(message: str) -> BaseException:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def _raise_elsewhere(message: str) -> BaseException:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_numbers_and_addresses_do_not_tell_errors_apart() -> None:
    one = _raise("bad sample 17 at 0x7f00aa on 10.0.0.1:5000, rank 0")
    other = _raise("bad sample 4711 at 0x7fbb11 on 10.0.0.2:6000, rank 3")
    assert exit_errors.fingerprint(one) == exit_errors.fingerprint(other)


def test_text_type_and_place_do() -> None:
    prints = {
        exit_errors.fingerprint(error)
        for error in (_raise("bad sample"), _raise("bad label"), _raise_elsewhere("bad sample"), KeyError("bad sample"))
    }
    assert len(prints) == 4
