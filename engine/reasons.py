"""The closed registry of reason codes: why a plan was made, why an option was not taken, why the run closed.

Codes are part of the log. A new one is a documented change: `docs/reasons.md` lists them, and a test compares.
"""

PLAN_REASONS: dict[str, str] = {
    "initial_placement": "the first nodes to join take the slots; again after the run was reopened",
    "no_standby": "hold: a slot is vacant and no standby may take it; halt: none came in time",
    "node_lost": "an active node's lease expired or its link closed",
    "node_left": "an active node's agent said goodbye before its workers finished",
    "node_rejoined": "a new life of a node joined while its old life was active: the old one is lost",
    "node_silent": "a node did not start its workers of this generation in time",
    "device_failure": "a device of an active node reported a fatal fault",
    "sdc": "a replay or a comparison of replicas found corrupted state",
    "desync": "ranks issued different collectives",
    "hang": "training stopped making progress",
    "input_stall": "ranks wait for their data loader",
    "checkpoint_stall": "ranks wait for checkpoint storage",
    "straggler": "a rank is persistently slow",
    "process_crash": "worker processes died of their own",
    "software_bug": "the same error on every rank, or again after a replacement: the program, not a machine",
    "numeric_divergence": "the loss is not finite",
    "communication": "workers failed in collectives and nobody is to blame",
    "operator": "an operator asked for it",
    "operator_halt": "an operator asked to halt",
    "sdc_unattributed": "the same peers disagree again and standbys do not suffice to replace them",
    "no_restorable_state": "no complete step that may be trusted is left",
    "no_progress": "generations in a row ended without a newer step to restore",
    "recovery_budget": "the run has used its recoveries",
}
"""`reason` of a plan."""

REJECTED_REASONS: dict[str, str] = {
    "known_bad": "the step is at or above the first bad one",
    "incomplete": "some slot has no live source of the step",
    "digests_differ": "copies of one slot disagree, so none of them is used",
    "not_certified": "no check ran on the step, or not all were clean",
    "older_source_preferred": "the step is complete, but a certified or durable one was preferred",
    "digest_mismatch": "a copy's digest was wrong when it was restored",
    "missing": "a copy was not there when it was to be restored",
    "topology_mismatch": "a copy was made by another layout of ranks",
    "nonfinite": "a copy holds values that are not finite",
    "timeout": "a restore did not end in time",
    "restore_failed": "a copy could not be restored",
    "trusted_step_existed": "starting over would throw away trusted progress",
    "nobody_blamed": "no machine is to blame, so none is replaced",
    "first_time": "the node was not blamed before within the window",
    "within_restart_budget": "the node's crashes do not exceed what restarts in place",
    "not_enough_standbys": "too few standbys are free",
    "node_gone": "the node's life has ended",
    "node_condemned": "the node's hardware or results are not to be trusted",
    "blamed_again": "the node was blamed before within the window",
    "operator_asked": "the operator asked for something else",
    "node_slow": "restarting in place keeps the slow node",
    "failed_again": "it came back after the retry",
    "suspects_again": "the same nodes disagreed before",
    "waiting_for_standby": "a standby may still join",
    "recoverable": "the run can go on",
    "wait_ended": "no standby came in time",
    "would_repeat": "what failed repeatedly would be tried once more",
    "budget_used": "the run has used its recoveries",
    "nothing_to_restore": "no state is left to go on from",
    "shard_elsewhere": "another standby already holds the slot's shard",
    "same_failure_domain": "another standby is in another failure domain than the lost node",
    "joined_later": "another standby joined earlier",
    "cordoned": "an operator keeps the node out",
    "quarantined": "the node is quarantined",
    "drifted": "the node's configuration differs",
    "not_needed": "the node is not needed",
}
"""`reason` of a rejected option."""

CLOSE_REASONS: dict[str, str] = {
    "workers_finished": "every active node's workers finished",
}
"""`reason` of a run that succeeded; a halted run closes with its plan's reason."""
