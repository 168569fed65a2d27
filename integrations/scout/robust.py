"""Robust statistics: what most values say, whatever a few of them do."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def modified_z(value: float, others: Sequence[float], least_spread: float) -> float:
    """How far `value` lies from the median of `others`, itself included, in units of a normal deviation.

    `0.6745 * (value - median) / MAD`, after Iglewicz and Hoaglin, How to Detect and Handle Outliers (ASQC 1993),
    section 3.3; 0.6745 makes the median absolute deviation comparable with a standard deviation. Beyond 3.5 a value
    is an outlier.

    Args:
        value: one of `others`.
        others: at least one value.
        least_spread: a floor for the deviation, above 0.
    """
    middle = statistics.median(others)
    spread = statistics.median(abs(other - middle) for other in others)
    return 0.6745 * (value - middle) / max(spread, least_spread)
