"""Times in log lines, in the spellings found in the wild."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T_ ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")
_GLOG = re.compile(r"\b[IWEFCDV](\d\d)(\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")
_SYSLOG = re.compile(r"^(?:<\d+>)?([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d)")
_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, start=1)}


def stamp_ms(line: str, year: int) -> int | None:
    """UTC ms of the first time in `line`: ISO (also `2026-11-29_02:14:07`), glog (`E1129 02:14:07.123`) or syslog.

    Lines without a zone are taken as UTC; `year` is used where the line has none.
    """
    for found in (_iso(line), _glog(line, year), _syslog(line, year)):
        if found is not None:
            return found
    return None


def _iso(line: str) -> int | None:
    match = _ISO.search(line)
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    offset = (zone or "+00:00").replace("Z", "+00:00")
    return _ms(
        datetime.fromisoformat(f"{day}T{clock}{offset if ':' in offset else offset[:3] + ':' + offset[3:]}"), fraction
    )


def _glog(line: str, year: int) -> int | None:
    match = _GLOG.search(line)
    if match is None:
        return None
    month, day, clock, fraction = match.groups()
    return _checked(f"{year}-{month}-{day}T{clock}+00:00", fraction)


def _syslog(line: str, year: int) -> int | None:
    match = _SYSLOG.search(line)
    if match is None or match[1] not in _MONTHS:
        return None
    return _checked(f"{year}-{_MONTHS[match[1]]:02d}-{int(match[2]):02d}T{match[3]}+00:00", None)


def _checked(text: str, fraction: str | None) -> int | None:
    try:
        return _ms(datetime.fromisoformat(text), fraction)
    except ValueError:
        return None


def _ms(moment: datetime, fraction: str | None) -> int:
    seconds = round(moment.astimezone(timezone.utc).timestamp())
    return seconds * 1000 + int(((fraction or "") + "000")[:3])
