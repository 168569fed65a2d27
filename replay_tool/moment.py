"""Times for people: relative to the start of the log, and absolute in UTC."""

from __future__ import annotations

from datetime import datetime, timezone


def since(start_ms: int, at_ms: int) -> str:
    """`+12.345 s`, `+4:10.250`, `+3:05:09.000`: readable and sortable by eye within one log."""
    ms = at_ms - start_ms
    sign = "-" if ms < 0 else "+"
    seconds, ms = divmod(abs(ms), 1000)
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{sign}{hours}:{minutes:02d}:{seconds:02d}.{ms:03d}"
    if minutes:
        return f"{sign}{minutes}:{seconds:02d}.{ms:03d}"
    return f"{sign}{seconds}.{ms:03d} s"


def utc(at_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return (
        datetime.fromtimestamp(at_ms / 1000, tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def parse_since(text: str, start_ms: int, end_ms: int) -> int:
    """The UTC millisecond that `--since` names: `90s`, `5m`, `2h` before the end, a millisecond, or an ISO time.

    Raises:
        ValueError: none of these.
    """
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    if text.startswith("+") and text[1:].isdecimal():
        return start_ms + int(text[1:]) * 1000
    if text[-1:] in units and text[:-1].isdecimal():
        return end_ms - int(text[:-1]) * units[text[-1]]
    if text.isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return int(moment.timestamp() * 1000)
