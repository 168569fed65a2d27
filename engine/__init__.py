"""The engine room: facts in, decisions out, nothing else.

        fact                                                     decision
    (somebody saw it)                                      (follows from the log)
          |                                                          ^
          v                                                          |
    +-----------+    apply     +---------+    decide    +-----------------------+
    |  Record   |------------->|  State  |------------->| plan_committed        |
    | seq, hash |  reduce.py   |state.py |  decide.py   | run_closed, or None   |
    +-----------+              +---------+              +-----------------------+
          ^                         |                                |
          |                         | next_deadline (deadlines.py)   |
          |                         v                                |
          +---- the shell appends: facts, `deadline_passed`, <-------+
                and every decision in the transaction of its fact

The core is pure: no clock, no random, no I/O. Time and ids arrive inside records, so the same log gives the same
decisions, byte for byte, on any machine and in any year.

Read on: `events.py` (what can be said) -> `state.py` (what it adds up to) -> `decide.py` (what is done about it).
"""

from lmr.engine.canonical import canonical_bytes, parse_canonical
from lmr.engine.deadlines import Deadline, next_deadline
from lmr.engine.decide import decide
from lmr.engine.errors import EngineError, EventInvalid, FoldMisused, NotCanonical, PolicyInvalid
from lmr.engine.events import Event
from lmr.engine.plan import Plan
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.record import Record, genesis_hash, open_record, payload_bytes, record_hash, seal
from lmr.engine.reduce import apply
from lmr.engine.settle import decision_id, settle_decisions
from lmr.engine.state import State
from lmr.engine.version import ENGINE_VERSION

__all__ = [
    "ENGINE_VERSION",
    "Deadline",
    "EngineError",
    "Event",
    "EventInvalid",
    "FoldMisused",
    "NotCanonical",
    "Plan",
    "PolicyInvalid",
    "Record",
    "RecoveryPolicy",
    "State",
    "apply",
    "canonical_bytes",
    "decide",
    "decision_id",
    "genesis_hash",
    "next_deadline",
    "open_record",
    "parse_canonical",
    "payload_bytes",
    "record_hash",
    "seal",
    "settle_decisions",
]
