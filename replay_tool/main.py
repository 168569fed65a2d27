"""Entry of `lmr-replay`: parse, run one verb, print its answer, turn every refusal into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lmr.replay_tool.command_line import Command, build_parser
from lmr.replay_tool.errors import ReplayError

FINE, FOUND, CANNOT_READ, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `lmr-replay` with `argv` (default: the process's arguments).

    Returns:
        0 all is fine, 1 something was found (a fault, a difference, a changed decision), 2 the input cannot be read or
        the question makes no sense. A refusal is one line on stderr.
    """
    args = build_parser().parse_args(argv)
    command: Command = args.command
    try:
        code = command(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader went away (`| head`): no fault of ours, and nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReplayError as error:
        return _refuse(str(error))
    except (OSError, MemoryError) as error:
        return _refuse(
            f"{getattr(error, 'filename', None) or 'lmr-replay'}: {getattr(error, 'strerror', None) or error}"
        )
    except Exception as error:
        if _is_ours(error):
            return _refuse(str(error))
        raise


def _is_ours(error: Exception) -> bool:
    from lmr.engine.errors import EngineError
    from lmr.store import StoreError

    return isinstance(error, EngineError | StoreError)


def _refuse(text: str) -> int:
    first, *_ = text.strip().splitlines() or ["cannot read"]
    print(f"lmr-replay: {first}", file=sys.stderr)
    return CANNOT_READ


if __name__ == "__main__":
    sys.exit(main())
