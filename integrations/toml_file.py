"""TOML files that a user wrote: read whole, or refused in a line that names the file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path, invalid: type[Exception]) -> dict[str, Any]:
    """The file's table.

    Args:
        path: the file.
        invalid: the caller's error for a file that cannot be used.

    Raises:
        invalid: unreadable, or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise invalid(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise invalid(f"{path}: not TOML: {error}") from None
