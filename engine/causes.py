"""What failed: the most specific cause of an incident, and what its row of the table asks for.

The rules stand in order of precedence. Each looks at the settled facts and answers with a verdict or with None.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lmr.engine.commitment import lowest_step
from lmr.engine.incident import everyone
from lmr.engine.plan import Cause, Confidence
from lmr.engine.state import BAD_STATE, Fact, Incident, State
from lmr.engine.steps import TrustRule

LOSS_ORDER = ("node_lost", "node_left", "node_rejoined", "node_silent")
BLAMES_BEFORE_REPLACE = 1
"""A node blamed once restarts in place; blamed again within the window, it is replaced."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cause of an incident and what its row of the table asks for."""

    cause: Cause
    reason: str
    evidence: tuple[int, ...]
    trust: TrustRule = "certified"
    must_leave: frozenset[str] = frozenset()
    """Nodes that may not go on whatever is free: without standbys, training holds."""
    may_leave: tuple[str, ...] = ()
    """Nodes to replace while standbys last; alive, they restart in place otherwise."""
    why_stay: str = "nobody_blamed"
    """Why nobody is replaced, or why the blamed restart in place."""
    why_leave: str = "node_condemned"
    halt: str | None = None
    """The reason to halt instead."""
    why_halt: str = "failed_again"


Rule = Callable[[State, Incident], Verdict | None]


def classify(state: State, incident: Incident) -> Verdict:
    """The most specific cause the settled facts allow."""
    for rule in PRECEDENCE:
        verdict = rule(state, incident)
        if verdict is not None:
            return verdict
    return _continued_restore(state, incident)


def _operator(_: State, incident: Incident) -> Verdict | None:
    facts = incident.of("operator")
    if not facts:
        return None
    request = next((fact for fact in facts if fact.word == "halt"), facts[0])
    cause = _cause("operator", [request], "direct")
    if request.word == "halt":
        return Verdict(cause, "operator_halt", _seqs([request]), halt="operator_halt", why_halt="operator_asked")
    leave = frozenset(request.nodes) if request.word == "replace" else frozenset()
    return Verdict(
        cause, "operator", _seqs([request]), must_leave=leave, why_stay="operator_asked", why_leave="operator_asked"
    )


def _device(_: State, incident: Incident) -> Verdict | None:
    facts = incident.of("device")
    return Verdict(_cause("device_failure", facts, "direct"), "device_failure", _seqs(facts)) if facts else None


def _node_loss(_: State, incident: Incident) -> Verdict | None:
    facts = incident.of("loss")
    if not facts:
        return None
    reason = min((fact.word for fact in facts), key=LOSS_ORDER.index)
    return Verdict(_cause("node_loss", facts, "direct"), reason, _seqs(facts), why_leave="node_gone")


def _sdc(_: State, incident: Incident) -> Verdict | None:
    facts = incident.of("sdc")
    return Verdict(_cause("sdc", facts, "attributed"), "sdc", _seqs(facts)) if facts else None


def _sdc_ambiguous(state: State, incident: Incident) -> Verdict | None:
    facts = incident.of("mismatch")
    if not facts:
        return None
    cause = _cause("sdc", facts, "ambiguous")
    again = [fact for fact in facts if fact.nodes and frozenset(fact.nodes) in state.memory.mismatches]
    if not again:
        return Verdict(cause, "sdc", _seqs(facts))
    suspects = frozenset(name for fact in again for name in fact.nodes)
    gone = {state.generation.slots[slot].node for slot in state.vacant_slots()} if state.generation else set()
    halt = "sdc_unattributed" if len(state.standbys()) < len(suspects | gone) else None
    return Verdict(
        cause,
        "sdc",
        _seqs(facts),
        must_leave=suspects,
        why_leave="suspects_again",
        halt=halt,
        why_halt="not_enough_standbys",
    )


def _divergence(state: State, incident: Incident) -> Verdict | None:
    facts = incident.of("divergence")
    if not facts:
        return None
    if not everyone(state, facts):
        cause = _cause("numeric_divergence", facts, "ambiguous")
        again = frozenset(name for name in cause.nodes if blamed(state, name) > BLAMES_BEFORE_REPLACE)
        return Verdict(
            cause,
            "numeric_divergence",
            _seqs(facts),
            must_leave=again,
            why_stay="first_time",
            why_leave="blamed_again",
        )
    cause = Cause(kind="numeric_divergence", nodes=(), ranks=_ranks(facts), confidence="attributed")
    step, before = lowest_step(facts), state.memory.divergence
    again_here = before is not None and (step is None or step <= before)
    return Verdict(cause, "numeric_divergence", _seqs(facts), halt="numeric_divergence" if again_here else None)


def _desync(state: State, incident: Incident) -> Verdict | None:
    return _blamed_twice(state, "desync", incident.of("desync"), "certified")


def _hang(state: State, incident: Incident) -> Verdict | None:
    return _blamed_twice(state, "hang", incident.of("hang"), "certified")


def _stall(state: State, incident: Incident) -> Verdict | None:
    facts = incident.of("input_stall", "checkpoint_stall")
    if everyone(state, facts):
        return None  # storage is down: no machine's fault, and a restart would stall again
    kind = "input_stall" if "input_stall" in incident.kinds else "checkpoint_stall"
    return _blamed_twice(state, kind, facts, "latest")


def _straggler(_: State, incident: Incident) -> Verdict | None:
    facts = incident.of("straggler")
    if not facts:
        return None
    cause = _cause("straggler", facts, "attributed")
    return Verdict(
        cause, "straggler", _seqs(facts), trust="latest", must_leave=frozenset(cause.nodes), why_leave="node_slow"
    )


def _software_bug(state: State, incident: Incident) -> Verdict | None:
    facts = incident.of("crash")
    fingerprints = {fact.word for fact in facts}
    if len(fingerprints) != 1 or "" in fingerprints or not everyone(state, facts):
        return None
    cause = Cause(kind="software_bug", nodes=(), ranks=_ranks(facts), confidence="attributed")
    fingerprint = fingerprints.pop()
    seen = fingerprint in state.memory.bugs
    before, step = state.memory.bugs.get(fingerprint), lowest_step(facts)
    again = seen and (before is None or step is None or step <= before)
    return Verdict(cause, "software_bug", _seqs(facts), halt="software_bug" if again else None)


def _bug_followed_the_slot(state: State, incident: Incident) -> Verdict | None:
    """A crash whose node was replaced for it, now on another node at the same step: the replace was its retry."""
    facts = [fact for fact in incident.of("crash") if fact.word and fact.step is not None]
    followed = [
        fact
        for fact in facts
        if fact.step is not None and state.memory.evicted_crashes.get((fact.word, fact.step), set()) - set(fact.nodes)
    ]
    if not followed:
        return None
    cause = Cause(kind="software_bug", nodes=(), ranks=_ranks(followed), confidence="attributed")
    return Verdict(cause, "software_bug", _seqs(followed), halt="software_bug")


def _process_crash(state: State, incident: Incident) -> Verdict | None:
    facts = incident.of("crash")
    if not facts:
        return None
    cause = _cause("process_crash", facts, "direct")
    again = tuple(name for name in cause.nodes if blamed(state, name) > state.policy.restarts_before_replace)
    return Verdict(
        cause,
        "process_crash",
        _seqs(facts),
        may_leave=again,
        why_stay="within_restart_budget",
        why_leave="blamed_again",
    )


def _communication(_: State, incident: Incident) -> Verdict | None:
    facts = incident.of("echo")
    if not facts:
        return None
    cause = Cause(kind="communication", nodes=(), ranks=(), confidence="ambiguous")
    return Verdict(cause, "communication", _seqs(facts))


PRECEDENCE: tuple[Rule, ...] = (
    _operator,
    _device,
    _node_loss,
    _sdc,
    _sdc_ambiguous,
    _divergence,
    _desync,
    _hang,
    _stall,
    _straggler,
    _software_bug,
    _bug_followed_the_slot,
    _process_crash,
    _communication,
)


def _continued_restore(state: State, incident: Incident) -> Verdict:
    """Only a restore failed: the incident that was being recovered goes on, with the next source or step."""
    facts = incident.of("restore")
    assert state.generation is not None
    plan = state.generation.plan
    trust: TrustRule = "latest" if plan.cause.kind in ("input_stall", "checkpoint_stall", "straggler") else "certified"
    return Verdict(plan.cause, plan.reason, _seqs(facts), trust=trust, why_stay="nobody_blamed")


def _blamed_twice(state: State, kind: str, facts: list[Fact], trust: TrustRule) -> Verdict | None:
    if not facts:
        return None
    cause = _cause(kind, facts, "attributed" if any(fact.nodes for fact in facts) else "ambiguous")
    again = tuple(name for name in cause.nodes if blamed(state, name) > BLAMES_BEFORE_REPLACE)
    stay = "first_time" if cause.nodes else "nobody_blamed"
    return Verdict(cause, kind, _seqs(facts), trust=trust, may_leave=again, why_stay=stay, why_leave="blamed_again")


def blamed(state: State, name: str) -> int:
    """Incidents attributed to the node within the blame window, the one being decided included."""
    since_ms = state.now_ms - state.policy.blame_window_s * 1000
    return 1 + sum(at_ms >= since_ms for at_ms in state.nodes[name].blamed_ms)


def first_bad_step(incident: Incident) -> int | None:
    """The lowest step any settled verdict calls bad, whichever cause names the incident."""
    steps = [fact.step for fact in incident.of(*BAD_STATE) if fact.step is not None and fact.binds_step]
    return min(steps, default=None)


def _cause(kind: str, facts: list[Fact], confidence: Confidence) -> Cause:
    nodes = tuple(sorted({name for fact in facts for name in fact.nodes}))
    return Cause(kind=kind, nodes=nodes, ranks=_ranks(facts), confidence=confidence)


def _ranks(facts: list[Fact]) -> tuple[int, ...]:
    return tuple(sorted({rank for fact in facts for rank in fact.ranks}))


def _seqs(facts: list[Fact]) -> tuple[int, ...]:
    return tuple(fact.seq for fact in facts)
