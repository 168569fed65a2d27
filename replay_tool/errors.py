"""What `lmr-replay` refuses, named by the fault. Each becomes one line on stderr and exit code 2."""

from __future__ import annotations


class ReplayError(Exception):
    """Base of everything the tool says instead of an answer."""


class Unreadable(ReplayError):
    """The file, database or server cannot be read as a log.

    Args:
        where: what the user typed.
        why: one clause, without a full stop.
    """

    def __init__(self, where: str, why: str) -> None:
        self.where = where
        self.why = why
        super().__init__(f"{where}: {why}")


class NotInLog(ReplayError):
    """The log is readable, but what was asked for is not in it (a run, a plan, a seq, a node)."""


class PolicyFileInvalid(ReplayError):
    """A policy file has a syntax error, an unknown key or an ill-typed value."""


class Usage(ReplayError):
    """Options that cannot be combined, or an output that cannot be written."""


class LogBroken(ReplayError):
    """The stored log does not hold together at one seq; what lies behind was not read.

    Args:
        where: what the user typed.
        seq: the first record at fault.
        what: what is wrong with it.
    """

    def __init__(self, where: str, seq: int, what: str) -> None:
        self.where = where
        self.seq = seq
        self.what = what
        super().__init__(f"{where}: seq {seq}: {what} (`lmr-replay verify` says more)")
