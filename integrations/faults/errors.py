"""What can be wrong with a campaign."""

from __future__ import annotations


class FaultsError(Exception):
    """Base of what this package raises."""


class CampaignInvalid(FaultsError):
    """A campaign file cannot be used; the message names file and key, and what is allowed."""


class NotPossibleHere(FaultsError):
    """This machine does not let the fault be made; the message says what is missing."""
