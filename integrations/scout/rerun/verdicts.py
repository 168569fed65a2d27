"""What the ranks' results of one call mean. Lives beside the decider.

Only results of the same call in the same surroundings are compared. A rank whose own two runs differ is the outlier,
unless all ranks' do: then the kernel is not deterministic, which is said once and the call is never judged again.
Otherwise a strict majority says what is right; without one, what was agreed on earlier in the run. Two ranks that
differ and have no such result are known to differ, and nobody is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from lmr.integrations.scout.detector_policy import RerunPolicy
from lmr.integrations.scout.rerun.golden import Golden

KEPT_STEPS = 16


class ResultInvalid(Exception):
    """A node sent something that is no result."""


@dataclass(frozen=True)
class Result:
    """What one rank got; without a call where it had nothing to compute."""

    rank: int
    step: int
    recipe: str
    call: str
    runs: tuple[str, str]

    @classmethod
    def parse(cls, message: dict[str, Any]) -> Result:
        """Read what came in.

        Raises:
            ResultInvalid: it is none.
        """
        try:
            first, second = map(str, message["digests"])
            return cls(
                int(message["rank"]),
                int(message["step"]),
                str(message["recipe"]),
                str(message["call"]),
                (first, second),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ResultInvalid(repr(error)) from error

    @property
    def steady(self) -> bool:
        """Whether both runs gave the same."""
        return self.runs[0] == self.runs[1]


@dataclass(frozen=True)
class Verdict:
    """About one call at one step; `ranks` are at fault."""

    step: int
    recipe: str
    verdict: Literal["clean", "corrupt", "inconclusive"]
    ranks: tuple[int, ...]
    peers: tuple[int, ...]


@dataclass
class Verdicts:
    """Collects results and judges each call once all live ranks have spoken, or have had their time to.

    Args:
        policy: times.
        golden: what was agreed on before; outlives a generation.
    """

    policy: RerunPolicy
    golden: Golden
    _heard: dict[int, dict[int, Result]] = field(default_factory=dict)
    _first_ms: dict[int, int] = field(default_factory=dict)
    _judged: set[int] = field(default_factory=set)
    _newest: int | None = None
    """Newest step whose results were judged."""

    def hear(self, result: Result, now_ms: int) -> None:
        """One rank's result."""
        if result.step not in self._judged:
            self._first_ms.setdefault(result.step, now_ms)
            self._heard.setdefault(result.step, {})[result.rank] = result

    def look(self, live: tuple[int, ...], now_ms: int) -> list[Verdict]:
        """The verdicts that have become due."""
        found: list[Verdict] = []
        for step in sorted(self._heard):
            due = now_ms - self._first_ms[step] >= self.policy.settle_ms
            if due or self._heard[step].keys() >= set(live):
                results = self._heard.pop(step)
                del self._first_ms[step]
                self._judged = {s for s in self._judged if s > step - 1_000_000} | {step}
                self._newest = step
                found += self._judge_step(list(results.values()))
        return found

    def settled(self, step: int) -> bool:
        """Whether the newest check up to a step has been judged; true as well where there are no checks."""
        due = step - step % self.policy.every_steps
        return due == 0 or (self._newest is None and not self._heard) or (self._newest or 0) >= due

    def _judge_step(self, results: list[Result]) -> list[Verdict]:
        by_call: dict[str, list[Result]] = {}
        for result in sorted(results, key=lambda r: r.rank):
            if result.call:
                by_call.setdefault(result.call, []).append(result)
        return [verdict for same in by_call.values() if (verdict := self._judge(same)) is not None]

    def _judge(self, same: list[Result]) -> Verdict | None:
        call = same[0].call
        if self.golden.is_unsteady(call):
            return None
        known = self.golden.get(call)
        unsteady = [r.rank for r in same if not r.steady]
        if len(unsteady) == len(same) and known is None:
            self.golden.unsteady(call)
            return _verdict(same, "inconclusive", [])
        if unsteady:
            # A result that was once agreed on shows that the kernel is deterministic, also where all disagree with it.
            believed = 2 * len(unsteady) <= len(same) or len(same) == 1
            return _verdict(same, "corrupt", unsteady) if believed else self._doubt(same, call)
        digest, count = Counter(r.runs[0] for r in same).most_common(1)[0]
        if count == len(same):
            return self._agreed(same, call, digest, known)
        if 2 * count > len(same):
            right = digest
        elif known is not None and any(r.runs[0] == known for r in same):
            right = known
        else:
            return _verdict(same, "corrupt", [])
        return _verdict(same, "corrupt", [r.rank for r in same if r.runs[0] != right])

    def _agreed(self, same: list[Result], call: str, digest: str, known: str | None) -> Verdict | None:
        if known is None or known == digest:
            self.golden.agreed(call, digest)
            return _verdict(same, "clean", [])
        if len(same) == 1:
            return _verdict(same, "corrupt", [same[0].rank])
        return self._doubt(same, call)

    def _doubt(self, same: list[Result], call: str) -> Verdict:
        """Most ranks contradict what was agreed on: it is not the ranks."""
        self.golden.unsteady(call)
        return _verdict(same, "inconclusive", [])


def _verdict(same: list[Result], verdict: Literal["clean", "corrupt", "inconclusive"], ranks: list[int]) -> Verdict:
    return Verdict(same[0].step, same[0].recipe, verdict, tuple(ranks), tuple(r.rank for r in same))
