"""LM Resiliency: closed-loop recovery for torchrun training.

The rooms are `lmr.engine` (pure decisions), `lmr.store` (the SQL event log), `lmr.integrations` (torchrun, state,
detectors, frameworks, the `lmr` command) and `lmr.replay_tool` (`lmr-replay`).
"""

__version__ = "0.1.0"
