"""Which adapter attaches after which module was imported."""

from __future__ import annotations

ADAPTERS: dict[str, str] = {
    "torch": "lmr.integrations.frameworks.pytorch",
}
"""Imported module -> adapter module, which offers `attach() -> None`."""
