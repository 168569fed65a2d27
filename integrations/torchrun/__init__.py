"""The torchrun integration: rendezvous backend, node runtime, decider, supervisor.

    torchrun agent (main thread)           node runtime (one asyncio thread an agent)
    +----------------------------+         +-------------------------------------------------+
    | handler.next_rendezvous() -+- waits -+> plans, barrier      worker socket <- supervisors |
    | handler.num_nodes_waiting()+- flags -+  link client ------\\  vault control <- vault       |
    +----------------------------+         +--------------------|----------------------------+
                                                                v
                              decider (in the agent that hosts the run): facts -> log -> plan -> all nodes

Nothing here decides. Facts go to the log, plans come from it, and the handler acts on committed plans only.
"""
