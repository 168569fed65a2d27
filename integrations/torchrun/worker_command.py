"""Whether a worker's process can load what supervises it."""

from __future__ import annotations

from pathlib import Path

DEAF = frozenset("EIS")
"""Options with which Python ignores PYTHONPATH, or `sitecustomize` altogether."""


def ignores_us(pid: int) -> bool:
    """Whether this process is a Python that was told to ignore its environment.

    Anything else may still become a worker that reports itself: a shell that starts Python, an interpreter that a busy
    file server keeps waiting.
    """
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    if not Path(arguments[0]).name.startswith("python"):
        return False
    options = iter(arguments[1:])
    for option in options:
        if not option.startswith("-") or option.startswith("--"):
            return False
        letters, _, value = option[1:].replace("W", "X").partition("X")
        if set(letters) & DEAF:
            return True
        if letters[-1:] in ("m", "c"):
            return False
        if option[-1] in "WX" and not value:
            next(options, None)  # its value
    return False
