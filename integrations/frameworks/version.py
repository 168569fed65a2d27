"""Whether an adapter fits the version of its framework, from metadata; said once where the framework is claimed."""

from __future__ import annotations

import functools

from lmr.integrations.frameworks import adapter
from lmr.integrations.frameworks.registry import SUPPORT, is_too_old, judge, version_of

of = functools.cache(version_of)
"""As `version_of`, read once: the warm process reads torch's, for all trainers."""


def fits(module: str) -> bool:
    """Whether to attach to an imported framework. Newer than tested: with a warning. Older: not at all."""
    session, support = adapter.session(), SUPPORT[module]
    if session is None:
        return False
    what = f"version of {support.name}"
    version = of(support.distribution)
    if version is None:
        session.degraded(what, f"{support.name} is imported but has no metadata; its version is unknown")
        return True
    complaint = judge(support, version)
    if complaint is None:
        return True
    if is_too_old(support, version):
        session.refuse_framework(complaint)
        return False
    session.degraded(what, complaint)
    return True
