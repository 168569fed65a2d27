"""Reason codes, which the engine registers, as clauses: `because("not_certified")` completes "Not step 1243: ..."."""

from __future__ import annotations

from lmr.engine.reasons import CLOSE_REASONS, PLAN_REASONS, REJECTED_REASONS


def because(code: str) -> str:
    """The registry's words for a code; an unknown code (of a newer engine) is shown as it is."""
    for registry in (REJECTED_REASONS, PLAN_REASONS, CLOSE_REASONS):
        if code in registry:
            return registry[code]
    return f"{code} (a reason this version does not know)"
