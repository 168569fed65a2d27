"""The audit views of evidence, incidents and recovery times again, with the same rows at a cost that grows as the log.

As written before, SQLite read every record of a run for each plan to find the facts it cites, and each incident
searched everything behind it. Now the facts a plan cites are looked up by seq, each plan is read once, and what
followed the plans of a generation is found by one walk over both, newest first.

Revision ID: 0004
"""

# ruff: noqa: S608 - every part of these queries is a constant of this file

from alembic import op

from lmr.store.migrations.json_columns import RARE, PostgresJson, SQLiteJson, json_of

revision = "0004"
down_revision = "0003"


# What an incident's row says beside its place and generation.
_INCIDENT = (
    "incident",
    "detected_seq",
    "first_plan_seq",
    "plans",
    "holds",
    "cause_kind",
    "confidence",
    "cause_nodes",
    "cause_ranks",
    "first_reason",
    "last_reason",
    "action",
    "from_generation",
    "checkpoint_step",
    "trust",
    "lost_steps",
    "newest_seq",
)
_RECOVERY = (
    "incident",
    "cause_kind",
    "action",
    "outcome",
    "cause_nodes",
    "detected_seq",
    "resumed_seq",
    "lost_steps",
)


def upgrade() -> None:
    """Put the new queries in place of the old. PostgreSQL's views are replaced, so that their grants stay."""
    connection = op.get_bind()
    views = _views(json_of(connection))
    if connection.dialect.name == "sqlite":
        for name, _ in reversed(views):
            op.execute(f"DROP VIEW {name}")
    create = "CREATE VIEW" if connection.dialect.name == "sqlite" else "CREATE OR REPLACE VIEW"
    for name, query in views:
        connection.exec_driver_sql(f"{create} {name} AS {query}")


def _views(json: SQLiteJson | PostgresJson) -> list[tuple[str, str]]:
    def plan(key: str) -> str:
        return json.text(f"data.plan.{key}")

    def plan_number(key: str) -> str:
        return f"CAST({plan(key)} AS BIGINT)"

    generation = f"CAST({json.text('data.generation')} AS BIGINT)"
    plans = f"e.type = 'plan_committed' AND e.{RARE}"
    nothing = "CAST(NULL AS TEXT)"

    # CROSS JOIN: SQLite keeps the order written, so that facts are looked up by the seq that the list names.
    cited = f"{json.scalars('data.plan.evidence', 'x')} CROSS JOIN events f"
    fact = f"f.seq, f.type, f.source, f.at_ms, f.recorded_at_ms, f.hash, {json.whole('data', 'f')} AS data"
    audit_evidence = f"""
        SELECT e.run_id, e.seq AS plan_seq, {plan("plan_id")} AS plan_id, {plan_number("incident")} AS incident,
          'chosen' AS used_for, {nothing} AS option, {fact}
        FROM events e CROSS JOIN {cited}
        WHERE {plans} AND f.run_id = e.run_id AND f.seq = CAST(x.value AS BIGINT)
        UNION ALL
        SELECT e.run_id, e.seq AS plan_seq, {plan("plan_id")} AS plan_id, {plan_number("incident")} AS incident,
          'rejected' AS used_for, {json.member("r", "option")} AS option, {fact}
        FROM events e CROSS JOIN {json.each("data.plan.rejected", "r")}
          CROSS JOIN {json.each_of("r", "evidence", "x")} CROSS JOIN events f
        WHERE {plans} AND f.run_id = e.run_id AND f.seq = CAST(x.value AS BIGINT)"""

    # The first plan of an incident says what was found, the last what came of it: the window carries one to the other.
    first = ", ".join(
        f"first_value({name}) OVER plans_so_far AS {alias}"
        for name, alias in (
            ("detected_seq", "detected_seq"),
            ("seq", "first_plan_seq"),
            ("cause_kind", "cause_kind"),
            ("confidence", "confidence"),
            ("cause_nodes", "cause_nodes"),
            ("cause_ranks", "cause_ranks"),
            ("reason", "first_reason"),
            ("from_generation", "from_generation"),
        )
    )
    audit_incidents = f"""
        WITH plans AS (
          SELECT e.run_id, e.seq, {plan_number("incident")} AS incident, {plan("action")} AS action,
            {plan("reason")} AS reason, {plan("cause.kind")} AS cause_kind, {plan("cause.confidence")} AS confidence,
            {plan("cause.nodes")} AS cause_nodes, {plan("cause.ranks")} AS cause_ranks,
            {plan_number("from_generation")} AS from_generation, {plan_number("to_generation")} AS to_generation,
            {plan_number("checkpoint.step")} AS checkpoint_step, {plan("checkpoint.trust")} AS trust,
            {plan_number("checkpoint.lost_steps")} AS lost_steps,
            (SELECT min(f.seq) FROM {cited} WHERE f.run_id = e.run_id AND f.seq = CAST(x.value AS BIGINT))
              AS detected_seq
          FROM events e WHERE {plans}),
        told AS (
          SELECT run_id, incident, seq AS last_plan_seq, action, reason AS last_reason, to_generation,
            checkpoint_step, trust, lost_steps, {first}, row_number() OVER plans_so_far AS plans,
            sum(CASE WHEN action = 'hold' THEN 1 ELSE 0 END) OVER plans_so_far AS holds,
            lead(seq) OVER plans_so_far AS next_seq
          FROM plans WHERE action <> 'start'
          WINDOW plans_so_far AS (PARTITION BY run_id, incident ORDER BY seq)),
        spans AS (
          SELECT told.*, max(first_plan_seq) OVER (PARTITION BY run_id) AS newest_seq FROM told WHERE next_seq IS NULL),
        followed AS (
          SELECT run_id, last_plan_seq AS seq, to_generation AS generation, CAST(NULL AS BIGINT) AS resumption,
            {", ".join(_INCIDENT)} FROM spans
          UNION ALL
          SELECT e.run_id, e.seq, {generation}, e.seq, {", ".join(["NULL"] * len(_INCIDENT))}
          FROM events e WHERE e.type = 'training_resumed' AND e.{RARE}),
        resumed AS (
          SELECT followed.*, min(resumption) OVER (PARTITION BY run_id, generation ORDER BY seq DESC) AS resumed_seq
          FROM followed)
        SELECT run_id, incident, detected_seq, first_plan_seq, seq AS last_plan_seq, plans, holds, cause_kind,
          confidence, cause_nodes, cause_ranks, first_reason, last_reason, action, from_generation,
          generation AS to_generation, checkpoint_step, trust, lost_steps, resumed_seq,
          CASE WHEN action = 'halt' THEN 'halted'
               WHEN resumed_seq IS NOT NULL THEN 'resumed'
               WHEN newest_seq > seq THEN 'superseded'
               WHEN action = 'hold' THEN 'held'
               ELSE 'open' END AS outcome
        FROM resumed WHERE incident IS NOT NULL"""

    def recorded(seq: str) -> str:
        return f"(SELECT d.recorded_at_ms FROM events d WHERE d.run_id = i.run_id AND d.seq = i.{seq})"

    audit_recovery_times = f"""
        WITH followed AS (
          SELECT run_id, last_plan_seq AS seq, to_generation AS generation, CAST(NULL AS BIGINT) AS started_ms,
            CAST(NULL AS BIGINT) AS state_ms, {", ".join(_RECOVERY)} FROM audit_incidents
          UNION ALL
          SELECT e.run_id, e.seq, {generation}, CASE WHEN e.type = 'generation_started' THEN e.recorded_at_ms END,
            CASE WHEN e.type = 'state_restored' THEN e.recorded_at_ms END, {", ".join(["NULL"] * len(_RECOVERY))}
          FROM events e WHERE e.type IN ('generation_started', 'state_restored') AND e.{RARE}),
        reached AS (
          SELECT followed.*, max(started_ms) OVER what_followed AS workers_up_at_ms,
            max(state_ms) OVER what_followed AS restored_at_ms
          FROM followed WINDOW what_followed AS (PARTITION BY run_id, generation ORDER BY seq DESC)),
        times AS (
          SELECT i.*, {recorded("detected_seq")} AS detected_at_ms, {recorded("seq")} AS decided_at_ms,
            {recorded("resumed_seq")} AS resumed_at_ms
          FROM reached i WHERE i.incident IS NOT NULL)
        SELECT run_id, incident, cause_kind, action, outcome, cause_nodes, detected_at_ms, decided_at_ms,
          workers_up_at_ms, restored_at_ms, resumed_at_ms, decided_at_ms - detected_at_ms AS decide_ms,
          workers_up_at_ms - decided_at_ms AS start_ms, restored_at_ms - workers_up_at_ms AS restore_ms,
          resumed_at_ms - restored_at_ms AS resume_ms, resumed_at_ms - detected_at_ms AS total_ms, lost_steps
        FROM times"""

    return [
        ("audit_evidence", audit_evidence),
        ("audit_incidents", audit_incidents),
        ("audit_recovery_times", audit_recovery_times),
    ]
