"""The vault: one process a node that keeps training state in memory while trainers come and go.

    trainers --- grant, captured, restore ---> loop (one thread, owns all state) <--- generation, pin, load --- agent
                                                |         ^
                                       jobs     v         |  results
                                     hasher    sender (a thread a peer)    server (a thread a connection) <---> vaults

Memory is in memfds: a trainer is granted one, writes a capture and hands it back; nobody else writes to it, and nothing
is left behind when the last process that has it open is gone. Started by `python -m lmr.integrations.gemini.vault`.
"""
