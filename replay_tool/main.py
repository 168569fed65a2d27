"""Entry of `lmr-replay`: parse, run one verb, print its answer, turn every refusal into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lmr.replay_tool.command_line import Command, build_parser
from lmr.replay_tool.errors import ReplayError
from lmr.replay_tool.standard_output import READER_WENT, give_up_unwritten, replace_unknown_characters

FINE, FOUND, CANNOT_READ, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `lmr-replay` with `argv` (default: the process's arguments).

    Returns:
        0 all is fine, 1 something was found (a fault, a difference, a changed decision), 2 the input cannot be read or
        the question makes no sense, 130 interrupted, 141 the reader of the output went away. A refusal is one line on
        stderr.
    """
    replace_unknown_characters()
    args = build_parser().parse_args(argv)
    command: Command = args.command
    try:
        code = command(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader went away (`| head`): nobody to tell, and 0 or 1 would be an answer
        give_up_unwritten()
        return READER_WENT
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReplayError as error:
        return _refuse(str(error))
    except (OSError, MemoryError) as error:
        give_up_unwritten()
        where = getattr(error, "filename", None)
        return _refuse((f"{where}: " if where else "") + str(getattr(error, "strerror", None) or error))
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
