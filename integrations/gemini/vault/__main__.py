"""`python -m lmr.integrations.gemini.vault`: the vault of one node, started by its agent."""

from __future__ import annotations

import json
import os
import signal
import sys

import structlog

from lmr.integrations.gemini.checkpoint_policy import CheckpointPolicy
from lmr.integrations.gemini.vault.service import Service


def main() -> None:
    """Serve until the agent says close or has been gone for too long."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    # Schedulers and terminals signal every process of a job; the agent decides when the state may go.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    env = os.environ
    policy = json.loads(env.get("LMR_WORKER_POLICY") or "{}")
    service = Service(
        node=env["LMR_NODE"],
        run=env["LMR_RUN"],
        secret=bytes.fromhex(env["LMR_SECRET"]),
        socket_name=env["LMR_VAULT_SOCKET"],
        host=env.get("LMR_VAULT_HOST", ""),
        policy=CheckpointPolicy.model_validate(policy.get("checkpoint", {})),
    )
    # A scheduler that ends a job tells all its processes; the agent, which was told too, says when it is done with us.
    signal.signal(signal.SIGTERM, lambda _number, _frame: service.told_to_end())
    service.run()
    # Threads may sit in a transfer; what they hold is memory of this process only.
    os._exit(0)


if __name__ == "__main__":
    main()
