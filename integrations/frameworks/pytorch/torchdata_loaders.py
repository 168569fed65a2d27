"""torchdata's `StatefulDataLoader`, which has its own `__iter__` and knows its place itself."""

from __future__ import annotations


def attach() -> None:
    """Follow stateful loaders as torch's own are followed; called once their module has been imported."""
    from torchdata.stateful_dataloader.stateful_dataloader import StatefulDataLoader

    from lmr.integrations.frameworks.adapter import session
    from lmr.integrations.frameworks.pytorch import hooks, loaders

    found = session()
    if found is not None:
        loaders.FOLLOWED.append(StatefulDataLoader)
        hooks.follow_loaders(StatefulDataLoader, found)
