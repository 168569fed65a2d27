"""Faults of the torchrun integration, named by whose they are."""

from __future__ import annotations


class IntegrationError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigInvalid(IntegrationError):
    """The user's `--rdzv-conf`, environment or policy is wrong; the message names file, key and what is allowed."""


class AdmissionRefused(IntegrationError):
    """The run does not take this agent.

    Args:
        reason: one line for the operator.
        exit_code: what the agent process should end with.
    """

    def __init__(self, reason: str, exit_code: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_code = exit_code


class MeetingFailed(IntegrationError):
    """The rendezvous endpoint could not be served or reached."""


class RunEnded(IntegrationError):
    """Why an agent ends, as its error file tells it."""
