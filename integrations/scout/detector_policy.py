"""Thresholds of the detectors: each with unit, default and the reason for it, each detector with its switch.

They are tables below `[replay]`, for instance `[replay.hang]`. Whole numbers only, so that equal policies have equal
bytes.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PulsePolicy(_Table):
    """How often nodes look at their ranks."""

    enabled: bool = Field(True, description="observe the ranks at all; every detector but health and drift needs it")
    report_ms: int = Field(
        500,
        ge=50,
        le=60_000,
        description="milliseconds between two summaries of a node: a tenth of the shortest useful hang threshold, and "
        "about 1 kB a second for eight ranks",
    )
    stale_ms: int = Field(
        2_500,
        ge=200,
        le=600_000,
        description="milliseconds after which a node that sends no summaries is not judged, nor others because of it: "
        "its lease says what became of it. Five reports, and below the lease",
    )


class HangPolicy(_Table):
    """Nobody gets on, because some rank does not."""

    enabled: bool = Field(True, description="publish rank_hung")
    floor_ms: int = Field(
        30_000,
        ge=500,
        le=86_400_000,
        description="least milliseconds without any progress that are a hang: above pauses of shared storage and of "
        "garbage collection, far below the process group's own timeout (NCCL 10 minutes, gloo 30)",
    )
    step_factor: int = Field(
        5,
        ge=2,
        le=1_000,
        description="how many times the longest of the run's newest steps a rank must stand still: five times the "
        "longest of 32 is seen in no run that goes on",
    )
    unlocalized_factor: int = Field(
        2,
        ge=1,
        le=100,
        description="how much longer to wait when no rank can be named: the restart then blames nobody, so it can wait "
        "until a slow network has had its chance",
    )
    long_section_s: int = Field(
        1_800,
        ge=1,
        le=604_800,
        description="seconds an evaluation, checkpoint, compilation, first step or declared section may take before it "
        "counts as standing still: the default timeout of a gloo group",
    )
    artifact_wait_ms: int = Field(
        3_000,
        ge=0,
        le=60_000,
        description="milliseconds to wait for stacks and flight records before the fact is published without them",
    )


class DesyncPolicy(_Table):
    """Ranks that call different collectives."""

    enabled: bool = Field(True, description="publish collective_desynced")
    settle_ms: int = Field(
        2_000,
        ge=0,
        le=600_000,
        description="milliseconds to wait for the other members' word on a collective: four reports",
    )


class StragglerPolicy(_Table):
    """Ranks slower than their equivalent peers."""

    enabled: bool = Field(True, description="publish rank_slowed")
    window_ms: int = Field(
        10_000,
        ge=500,
        le=3_600_000,
        description="milliseconds of one window: long enough that one garbage collection does not fill it",
    )
    window_steps: int = Field(
        10, ge=1, le=100_000, description="least steps of a window: the mean of fewer is one batch's luck"
    )
    outlier_z_hundredths: int = Field(
        350,
        ge=100,
        le=10_000,
        description="modified z-score, in hundredths, from which a rank is an outlier: 3.5 is the cut-off Iglewicz and "
        "Hoaglin recommend (How to Detect and Handle Outliers, ASQC 1993, section 3.3)",
    )
    spread_floor_pct: int = Field(
        2,
        ge=1,
        le=100,
        description="least spread between peers, in percent of the step: a median deviation over four ranks is often "
        "near zero by chance, and everything would be an outlier",
    )
    least_slowdown_pct: int = Field(
        10,
        ge=1,
        le=100_000,
        description="percent of a step a rank must cost the others: below it a recovery costs more than it gains",
    )
    windows: int = Field(
        5,
        ge=1,
        le=10_000,
        description="windows in a row before the first fact: bursts of one or two windows are common and pass",
    )
    history_windows: int = Field(
        12,
        ge=2,
        le=10_000,
        description="windows that make up a rank's own history; where fewer than three equivalent peers exist, only a "
        "rank that became slower than itself is named",
    )


class StallPolicy(_Table):
    """Ranks that wait for storage."""

    input_enabled: bool = Field(True, description="publish input_stalled")
    checkpoint_enabled: bool = Field(True, description="publish checkpoint_stalled")
    input_floor_ms: int = Field(
        60_000,
        ge=500,
        le=86_400_000,
        description="least milliseconds a batch must be waited for: above remounts and retries of object stores",
    )
    input_factor: int = Field(
        10,
        ge=2,
        le=1_000,
        description="how many times the longest wait for a batch so far; the first batch of an iteration is also "
        "compared with other first ones",
    )
    checkpoint_floor_ms: int = Field(
        600_000,
        ge=500,
        le=86_400_000,
        description="least milliseconds a save must take: a large model over a slow file system takes minutes",
    )
    checkpoint_factor: int = Field(
        5, ge=2, le=1_000, description="how many times the longest save so far; the first save has only the floor"
    )


class LossPolicy(_Table):
    """Training that has left the finite numbers."""

    enabled: bool = Field(True, description="publish loss_diverged")
    settle_ms: int = Field(
        1_500,
        ge=0,
        le=600_000,
        description="milliseconds to hear of that step from every rank, so that one rank's fault and everybody's are "
        "told apart: three reports",
    )


class BatchesPolicy(_Table):
    """Loaders that give other batches than their samplers prescribe."""

    enabled: bool = Field(True, description="compare the batches a loader takes and gives with its sampler's order")
    most_samples: int = Field(
        1_000_000,
        ge=1,
        le=1_000_000_000,
        description="longest data set whose order is computed a second time, once an epoch: that takes some tenths of "
        "a second, and 8 bytes for each of the rank's own samples",
    )
    settle_ms: int = Field(
        1_500,
        ge=0,
        le=600_000,
        description="milliseconds to hear of that step from every rank: what happens on most of them is the script's "
        "doing. Three reports",
    )


class ContinuityPolicy(_Table):
    """State that changes while nobody writes to it."""

    enabled: bool = Field(True, description="compare what an optimizer step left with what the next one finds")
    slice_bytes: int = Field(
        64 * 1024 * 1024,
        ge=4 * 1024,
        le=1 << 40,
        description="most bytes of parameters and optimizer state looked at in one step, the next ones in the next",
    )
    cost_permille: int = Field(
        3,
        ge=1,
        le=1_000,
        description="thousandths of a step that the looks may take, by the time the last ones took: the slice is as "
        "large as that allows, and 1 MiB (a few tenths of a millisecond) where it allows less",
    )
    slice_tensors: int = Field(
        256, ge=1, le=1_000_000, description="tensors looked at in each step at most: each costs some microseconds"
    )
    proving_checks: int = Field(
        2,
        ge=1,
        le=1_000,
        description="how often a piece of state must first have been found unchanged: what a script writes behind "
        "torch's back changes from the beginning and is left alone, once",
    )
    settle_ms: int = Field(
        1_500,
        ge=0,
        le=600_000,
        description="milliseconds to hear of that step from every rank: what changes on most of them is the script's "
        "doing. Three reports",
    )


class RerunPolicy(_Table):
    """Calls that equivalent ranks compute again and compare."""

    enabled: bool = Field(True, description="compute calls of the model again and compare the ranks' results")
    every_steps: int = Field(
        200,
        ge=1,
        le=1_000_000_000,
        description="optimizer steps between two checks: one layer forward and backward twice is about a sixth of a "
        "step of twelve layers, so this is less than a thousandth of the time",
    )
    seeds: int = Field(
        4,
        ge=1,
        le=1_000,
        description="how many sets of values a call is computed with in turn: a fault may show with some values only",
    )
    most_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        le=1 << 40,
        description="largest parameters and inputs, in bytes, of a call that is computed again: they are made anew",
    )
    settle_ms: int = Field(
        5_000,
        ge=0,
        le=600_000,
        description="milliseconds to wait for every rank's result: ranks compute it at the same step, each at its own "
        "speed",
    )


class HealthPolicy(_Table):
    """The machine below the ranks."""

    enabled: bool = Field(True, description="publish device_unhealthy")
    check_ms: int = Field(
        5_000,
        ge=100,
        le=3_600_000,
        description="milliseconds between two looks at kernel log, counters and devices; one look costs about 1 ms",
    )
    disabled_sources: tuple[str, ...] = Field(
        (), strict=False, description="names of health sources that are not to run on any node"
    )
    memory_floor_pct: int = Field(
        2,
        ge=0,
        le=50,
        description="percent of memory that must be available, else a warning: below it the kernel begins to kill",
    )


class DriftPolicy(_Table):
    """Nodes that are not set up as the others."""

    enabled: bool = Field(True, description="publish config_drifted")
    ignored_keys: tuple[str, ...] = Field(
        (),
        strict=False,
        description="configuration keys that may differ between nodes, such as `env.NCCL_SOCKET_IFNAME`",
    )
