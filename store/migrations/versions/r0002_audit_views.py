"""The audit views: the questions people ask of a log, as tables with the same columns on both dialects.

The views read `body`, the bytes that are hashed, so they say what was recorded and nothing else. NUL characters, which
PostgreSQL's text cannot hold, show as U+FFFD.

Revision ID: 0002
"""

# ruff: noqa: S608 - every part of these queries is a constant of this file

from alembic import op

from lmr.store.migrations.json_columns import RARE, PostgresJson, SQLiteJson, json_of

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the index of rare events and the views."""
    connection = op.get_bind()
    op.execute(f"CREATE INDEX events_rare ON events (type, run_id, seq) WHERE {RARE}")
    for name, query in _views(json_of(connection)):
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {query}")


def _views(json: SQLiteJson | PostgresJson) -> list[tuple[str, str]]:
    def text(key: str, alias: str = "e") -> str:
        return json.text(f"data.{key}", alias)

    def number(key: str, alias: str = "e") -> str:
        return f"CAST({text(key, alias)} AS BIGINT)"

    def of(*types: str) -> str:
        names = ", ".join(f"'{name}'" for name in types)
        return f"FROM events e WHERE e.type IN ({names}) AND e.{RARE}"

    def plan(key: str) -> str:
        return text(f"plan.{key}")

    def plan_number(key: str) -> str:
        return number(f"plan.{key}")

    nothing = "CAST(NULL AS TEXT)"
    plans = f"FROM events e WHERE e.type = 'plan_committed' AND e.{RARE}"

    audit_events = f"""
        SELECT e.run_id, e.seq, e.event_id, e.type, e.version, e.source, e.at_ms, e.recorded_at_ms, e.epoch,
          {json.whole("data")} AS data, e.prev_hash, e.hash
        FROM events e"""

    audit_plans = f"""
        SELECT e.run_id, e.seq, e.recorded_at_ms, e.epoch, {plan("plan_id")} AS plan_id,
          {plan_number("incident")} AS incident, {plan_number("from_generation")} AS from_generation,
          {plan_number("to_generation")} AS to_generation, {plan("action")} AS action, {plan("reason")} AS reason,
          {plan("cause.kind")} AS cause_kind, {plan("cause.confidence")} AS confidence,
          {plan("cause.nodes")} AS cause_nodes, {plan("cause.ranks")} AS cause_ranks,
          {plan_number("checkpoint.step")} AS checkpoint_step, {plan("checkpoint.trust")} AS trust,
          {plan_number("checkpoint.lost_steps")} AS lost_steps, {json.size("data.plan.assignments")} AS slots,
          {plan("quarantined")} AS quarantined, {plan("standby")} AS standby,
          {plan_number("economics.gain_ms")} AS gain_ms, {plan_number("economics.cost_ms")} AS cost_ms,
          {json.size("data.plan.evidence")} AS evidence_count, {json.size("data.plan.rejected")} AS rejected_count,
          {plan_number("decided_through")} AS decided_through,
          (SELECT d.hash FROM events d WHERE d.run_id = e.run_id AND d.seq = {plan_number("decided_through")})
            AS decided_on_hash,
          {plan("policy_digest")} AS policy_digest, {plan("engine")} AS engine
        {plans}"""

    audit_rejected = f"""
        SELECT e.run_id, e.seq AS plan_seq, {plan("plan_id")} AS plan_id, {plan_number("incident")} AS incident,
          {json.member("r", "option")} AS option, {json.member("r", "reason")} AS reason,
          {json.member("r", "evidence")} AS evidence
        FROM events e, {json.each("data.plan.rejected", "r")}
        WHERE e.type = 'plan_committed' AND e.{RARE}"""

    fact = f"""f.seq, f.type, f.source, f.at_ms, f.recorded_at_ms, f.hash, {json.whole("data", "f")} AS data"""
    audit_evidence = f"""
        SELECT e.run_id, e.seq AS plan_seq, {plan("plan_id")} AS plan_id, {plan_number("incident")} AS incident,
          'chosen' AS used_for, {nothing} AS option, {fact}
        FROM events e, {json.scalars("data.plan.evidence", "x")}, events f
        WHERE e.type = 'plan_committed' AND e.{RARE} AND f.run_id = e.run_id AND f.seq = CAST(x.value AS BIGINT)
        UNION ALL
        SELECT e.run_id, e.seq AS plan_seq, {plan("plan_id")} AS plan_id, {plan_number("incident")} AS incident,
          'rejected' AS used_for, {json.member("r", "option")} AS option, {fact}
        FROM events e, {json.each("data.plan.rejected", "r")}, {json.each_of("r", "evidence", "x")}, events f
        WHERE e.type = 'plan_committed' AND e.{RARE} AND f.run_id = e.run_id AND f.seq = CAST(x.value AS BIGINT)"""

    audit_incident_nodes = f"""
        SELECT e.run_id, e.seq AS plan_seq, {plan_number("incident")} AS incident, {plan("action")} AS action,
          {plan("cause.kind")} AS cause_kind, x.value AS node
        FROM events e, {json.scalars("data.plan.cause.nodes", "x")}
        WHERE e.type = 'plan_committed' AND e.{RARE}"""

    later = f"""FROM events e WHERE e.run_id = l.run_id AND e.seq > l.seq AND e.{RARE}
          AND {number("generation")} = l.to_generation"""
    audit_incidents = f"""
        WITH spans AS (
          SELECT run_id, incident, min(seq) AS first_seq, max(seq) AS last_seq, count(*) AS plans,
            sum(CASE WHEN action = 'hold' THEN 1 ELSE 0 END) AS holds
          FROM audit_plans WHERE action <> 'start' GROUP BY run_id, incident),
        resumed AS (
          SELECT l.run_id, l.incident,
            (SELECT min(e.seq) {later} AND e.type = 'training_resumed') AS resumed_seq
          FROM audit_plans l JOIN spans s ON s.run_id = l.run_id AND s.last_seq = l.seq)
        SELECT s.run_id, s.incident,
          (SELECT min(v.seq) FROM audit_evidence v
            WHERE v.run_id = s.run_id AND v.plan_seq = s.first_seq AND v.used_for = 'chosen') AS detected_seq,
          s.first_seq AS first_plan_seq, s.last_seq AS last_plan_seq, s.plans, s.holds, p.cause_kind, p.confidence,
          p.cause_nodes, p.cause_ranks, p.reason AS first_reason, l.reason AS last_reason, l.action,
          p.from_generation, l.to_generation, l.checkpoint_step, l.trust, l.lost_steps, r.resumed_seq,
          CASE WHEN l.action = 'halt' THEN 'halted'
               WHEN r.resumed_seq IS NOT NULL THEN 'resumed'
               WHEN EXISTS (SELECT 1 FROM spans n WHERE n.run_id = s.run_id AND n.first_seq > s.last_seq)
                 THEN 'superseded'
               WHEN l.action = 'hold' THEN 'held'
               ELSE 'open' END AS outcome
        FROM spans s
        JOIN audit_plans p ON p.run_id = s.run_id AND p.seq = s.first_seq
        JOIN audit_plans l ON l.run_id = s.run_id AND l.seq = s.last_seq
        JOIN resumed r ON r.run_id = s.run_id AND r.incident = s.incident"""

    audit_recovery_times = f"""
        WITH times AS (
          SELECT i.run_id, i.incident, i.cause_kind, i.action, i.outcome, i.lost_steps, i.cause_nodes,
            (SELECT d.recorded_at_ms FROM events d WHERE d.run_id = i.run_id AND d.seq = i.detected_seq)
              AS detected_at_ms,
            l.recorded_at_ms AS decided_at_ms,
            (SELECT max(e.recorded_at_ms) {later} AND e.type = 'generation_started') AS workers_up_at_ms,
            (SELECT max(e.recorded_at_ms) {later} AND e.type = 'state_restored') AS restored_at_ms,
            (SELECT d.recorded_at_ms FROM events d WHERE d.run_id = i.run_id AND d.seq = i.resumed_seq)
              AS resumed_at_ms
          FROM audit_incidents i JOIN audit_plans l ON l.run_id = i.run_id AND l.seq = i.last_plan_seq)
        SELECT run_id, incident, cause_kind, action, outcome, cause_nodes, detected_at_ms, decided_at_ms,
          workers_up_at_ms, restored_at_ms, resumed_at_ms, decided_at_ms - detected_at_ms AS decide_ms,
          workers_up_at_ms - decided_at_ms AS start_ms, restored_at_ms - workers_up_at_ms AS restore_ms,
          resumed_at_ms - restored_at_ms AS resume_ms, resumed_at_ms - detected_at_ms AS total_ms, lost_steps
        FROM times"""

    who = f"{number('generation')} AS generation"
    audit_membership = f"""
        SELECT e.run_id, e.seq, e.recorded_at_ms, e.type AS change, {text("node")} AS node,
          {text("incarnation")} AS incarnation, CAST(NULL AS BIGINT) AS slot, CAST(NULL AS BIGINT) AS generation,
          {text("address")} AS address, {text("failure_domain")} AS failure_domain, {text("by")} AS actor,
          coalesce({text("why")}, {text("reason")}) AS why
        {of("node_joined", "node_left", "node_lost", "node_confirmed", "node_cordoned", "node_uncordoned")}
        UNION ALL
        SELECT e.run_id, e.seq, e.recorded_at_ms, e.type, {text("node")}, {nothing}, CAST(NULL AS BIGINT),
          CAST(NULL AS BIGINT), {nothing}, {nothing}, {nothing}, coalesce({text("metric")}, {text("keys")})
        {of("device_unhealthy", "config_drifted")}
        UNION ALL
        SELECT e.run_id, e.seq, e.recorded_at_ms, e.type, {text("node")}, {nothing}, CAST(NULL AS BIGINT),
          {number("generation")}, {nothing}, {nothing}, {nothing}, {nothing}
        {of("generation_started", "workers_finished")}
        UNION ALL
        SELECT e.run_id, e.seq, e.recorded_at_ms, 'assigned', {json.member("a", "node")},
          {json.member("a", "incarnation")}, CAST({json.member("a", "slot")} AS BIGINT),
          {plan_number("to_generation")}, {nothing}, {nothing}, {nothing}, {plan("reason")}
        FROM events e, {json.each("data.plan.assignments", "a")}
        WHERE e.type = 'plan_committed' AND e.{RARE}
        UNION ALL
        SELECT e.run_id, e.seq, e.recorded_at_ms, 'quarantined', x.value, {nothing}, CAST(NULL AS BIGINT),
          {plan_number("to_generation")}, {nothing}, {nothing}, {nothing}, {plan("reason")}
        FROM events e, {json.scalars("data.plan.quarantined", "x")}
        WHERE e.type = 'plan_committed' AND e.{RARE}"""

    audit_checkpoints = f"""
        SELECT e.run_id, e.seq, e.recorded_at_ms, e.type AS change, {who}, {number("step")} AS step,
          {number("slot")} AS slot, coalesce({text("holder")}, {text("node")}) AS holder, {text("tier")} AS tier,
          coalesce({text("digest")}, {text("checkpoint_id")}) AS digest, {number("bytes")} AS bytes,
          {text("verdict")} AS verdict, {text("ranks")} AS ranks, {text("why")} AS why
        FROM events e
        WHERE e.type IN ('checkpoint_captured', 'checkpoint_replicated', 'checkpoint_flushed', 'checkpoint_persisted',
          'checkpoint_dropped', 'replay_checked', 'state_diverged', 'loss_diverged', 'state_restored',
          'restore_failed', 'training_resumed')"""

    return [
        ("audit_events", audit_events),
        ("audit_plans", audit_plans),
        ("audit_rejected", audit_rejected),
        ("audit_evidence", audit_evidence),
        ("audit_incident_nodes", audit_incident_nodes),
        ("audit_incidents", audit_incidents),
        ("audit_recovery_times", audit_recovery_times),
        ("audit_membership", audit_membership),
        ("audit_checkpoints", audit_checkpoints),
    ]
