"""Reason codes, which the engine registers, as clauses: `because("not_certified")` completes "Not step 1243: ..."."""

from __future__ import annotations

from lmr.engine.reasons import CLOSE_REASONS, PLAN_REASONS, REJECTED_REASONS

_OF_AN_ACTION = {
    ("hold", "not_needed"): "waiting for a standby would not help",
    ("hold", "wait_ended"): "the wait for a standby has ended",
}
"""Codes that say something else of an action than of a node."""


def because(code: str, option: str = "") -> str:
    """The registry's words for a code; an unknown code (of a newer engine) is shown as it is."""
    if (option, code) in _OF_AN_ACTION:
        return _OF_AN_ACTION[(option, code)]
    for registry in (REJECTED_REASONS, PLAN_REASONS, CLOSE_REASONS):
        if code in registry:
            return registry[code]
    return f"{code} (a reason this version does not know)"
