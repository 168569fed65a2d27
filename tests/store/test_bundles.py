"""A bundle gives back, byte for byte, what went into it; a damaged one gives nothing."""

import gzip
import json
from pathlib import Path

import pytest
from sqlalchemy import text
from store_samples import batch, joined
from store_story import RUN

from lmr.engine.events import PlanCommitted
from lmr.engine.offline import decide_facts
from lmr.engine.plan import Plan
from lmr.store import BundleInvalid, EventLog, HeadMoved, LogCorrupt, open_log
from lmr.store.bundle import bundle_records, export_bundle, import_bundle, read_bundle
from lmr.store.sealing import newest_snapshot, save_snapshot, seal_segment
from lmr.store.verify import verify_chain

RECORDED = Path(__file__).parent / "recorded" / "story.bundle"


def test_a_recorded_log_is_read_as_it_was_written(log: EventLog, tmp_path: Path) -> None:
    """The golden log: whatever changes, the bytes of recorded events and their hashes do not."""
    bundle = import_bundle(log, RECORDED)
    assert bundle.head.seq == 201
    assert bundle.head.hash == "bcdce23981fd13a34ae4c07075758d5cff41e28a4814fa0705fbad264b023469"
    assert verify_chain(log, RUN).fault is None
    export_bundle(log, RUN, tmp_path / "again.bundle")
    again = (tmp_path / "again.bundle").read_bytes()
    assert again.splitlines()[1:-1] == RECORDED.read_bytes().splitlines()[1:-1]


@pytest.mark.parametrize("name", ["log.bundle", "log.bundle.gz"])
def test_round_trip_is_byte_identical(log: EventLog, tmp_path: Path, name: str) -> None:
    log.acquire_lease("r", holder="a/1", address="h:1", ttl_ms=60_000)
    log.append("r", [*batch(1_500), ("nul", joined("n", address="a\0b \u2028 𝒳"))], epoch=1, writer="a/1")
    save_snapshot(log, "r", 1_000, b"\x00state\xff", engine="0.1.0")
    seal_segment(log, "r", 1_000)
    export_bundle(log, "r", tmp_path / name)
    with open_log(tmp_path / "other.db") as other:
        imported = import_bundle(other, tmp_path / name)
        assert other.head("r") == log.head("r")
        assert verify_chain(other, "r").fault is None
        snapshot = newest_snapshot(other, "r")
        assert snapshot is not None
        assert snapshot.state == b"\x00state\xff"
        export_bundle(other, "r", tmp_path / f"again-{name}")
        assert other.acquire_lease("r", holder="b/1", address="h", ttl_ms=1_000).epoch == 2  # type: ignore[union-attr]
    assert (tmp_path / f"again-{name}").read_bytes() == (tmp_path / name).read_bytes()
    assert imported.events == 1_501
    assert list(bundle_records(tmp_path / name)) == list(log.read("r"))


def test_an_imported_run_goes_on(tmp_path: Path) -> None:
    with open_log(tmp_path / "a.db") as log:
        log.append("r", batch(3))
        export_bundle(log, "r", tmp_path / "b")
    with open_log(tmp_path / "b.db") as other:
        import_bundle(other, tmp_path / "b")
        import_bundle(other, tmp_path / "b")
        assert other.append("r", batch(5))[0].seq == 4
        with pytest.raises(HeadMoved):
            import_bundle(other, tmp_path / "b")


def test_the_header_says_what_the_bundle_holds(log: EventLog, tmp_path: Path) -> None:
    import_bundle(log, RECORDED)
    bundle = export_bundle(log, RUN, tmp_path / "b", through_seq=50)
    assert (bundle.run_id, bundle.events, bundle.head.seq, bundle.redacted) == (RUN, 50, 50, False)
    assert bundle.policies == [{"seq": 1, "policy": {"settle_ms": 300}}]
    assert json.loads((tmp_path / "b").read_text().splitlines()[-1])["lmr_bundle_end"]["sha256"] == bundle.digest


def test_a_corrupt_log_is_not_exported(log: EventLog, tmp_path: Path) -> None:
    from store_tamper import unguarded

    log.append("r", batch(5))
    with unguarded(log) as connection:
        connection.execute(text("UPDATE events SET source = 'x' WHERE seq = 3"))
    with pytest.raises(LogCorrupt):
        export_bundle(log, "r", tmp_path / "b")
    assert list(tmp_path.glob("*b")) in ([], [tmp_path / "events.db"])


class TestDamage:
    """Whatever happened to the file, nothing of it is imported."""

    @pytest.fixture
    def whole(self, tmp_path: Path) -> bytes:
        with open_log(tmp_path / "a.db") as log:
            log.append("r", batch(5))
            export_bundle(log, "r", tmp_path / "whole")
        return (tmp_path / "whole").read_bytes()

    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: b"",
            lambda data: b"not a bundle\n",
            lambda data: data[:-1],
            lambda data: data[: len(data) // 2],
            lambda data: data.replace(b"abab", b"abac", 1),
            lambda data: b"\n".join(line for number, line in enumerate(data.split(b"\n")) if number != 3),
            lambda data: b"\n".join(sorted(data.split(b"\n"))),
            lambda data: data + b"more\n",
            lambda data: data.replace(b'"format":1', b'"format":9'),
            lambda data: gzip.compress(data)[:-20],
        ],
        ids=["empty", "text", "last byte", "cut", "flipped", "line gone", "shuffled", "appended", "newer", "cut gzip"],
    )
    def test_it_is_refused(self, tmp_path: Path, whole: bytes, damage: object) -> None:
        (tmp_path / "bad").write_bytes(damage(whole))  # type: ignore[operator]
        with open_log(tmp_path / "b.db") as other:
            with pytest.raises(BundleInvalid):
                import_bundle(other, tmp_path / "bad")
            assert other.runs() == []

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BundleInvalid, match="none"):
            read_bundle(tmp_path / "none")


class TestRedaction:
    """A redacted bundle names nobody, still chains, and the engine decides the same over it."""

    SECRETS = (b"node-1", b"node-7", b"10.0.0.", b"rack-", b"ada", b"grace", b"fan noise", b"memory test", b"swap-1")

    @pytest.fixture
    def redacted(self, tmp_path: Path) -> Path:
        with open_log(tmp_path / "a.db") as log:
            import_bundle(log, RECORDED)
            export_bundle(log, RUN, tmp_path / "redacted", redact=True)
        return tmp_path / "redacted"

    def test_nothing_secret_is_left(self, redacted: Path) -> None:
        data = redacted.read_bytes()
        assert [secret for secret in self.SECRETS if secret in data] == []
        assert b"lease_expired" in data
        assert b"ecc_uncorrectable" in data

    def test_the_same_thing_has_the_same_stand_in(self, redacted: Path) -> None:
        before = [record.event.source for record in bundle_records(RECORDED)]
        after = [record.event.source for record in bundle_records(redacted)]
        pairs = set(zip(before, after, strict=True))
        assert len(pairs) == len(set(before)) == len(set(after))
        nodes = sorted(pair for pair in pairs if pair[0].startswith("node"))
        assert [new for _, new in nodes] == sorted(new for _, new in nodes)

    def test_it_says_that_it_is_redacted_and_of_what(self, redacted: Path) -> None:
        bundle = read_bundle(redacted)
        assert bundle.redacted
        assert bundle.original == read_bundle(RECORDED).head
        assert bundle.head.seq == bundle.original.seq
        assert bundle.head.hash != bundle.original.hash

    def test_it_imports_verifies_and_round_trips_its_records(self, redacted: Path, log: EventLog) -> None:
        import_bundle(log, redacted)
        assert verify_chain(log, RUN).fault is None
        assert list(log.read(RUN)) == list(bundle_records(redacted))

    def test_plans_keep_true_ids_and_the_engine_decides_the_same(self, redacted: Path) -> None:
        records = list(bundle_records(redacted))
        recorded = [record.event for record in records if isinstance(record.event.data, PlanCommitted)]
        for event in recorded:
            assert isinstance(event.data, PlanCommitted)
            assert event.data.plan.plan_id == Plan.id_of(event.data.plan)
        facts = [(record.event_id, record.event) for record in records]
        replayed = [record.event for _, record in decide_facts(facts) if isinstance(record.event.data, PlanCommitted)]
        original = [(record.event_id, record.event) for record in bundle_records(RECORDED)]
        decided = [record.event for _, record in decide_facts(original) if isinstance(record.event.data, PlanCommitted)]
        assert len(replayed) == len(decided)
        for new, old in zip(replayed, decided, strict=True):
            assert isinstance(new.data, PlanCommitted)
            assert isinstance(old.data, PlanCommitted)
            assert (new.data.plan.action, new.data.plan.evidence) == (old.data.plan.action, old.data.plan.evidence)
            assert [slot.slot for slot in new.data.plan.assignments] == [
                slot.slot for slot in old.data.plan.assignments
            ]
