"""Failure profiles from published statistics.

Weights are counts as published; what a count looks like to the detectors is our reading and stands in `LOOKS_LIKE`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """How a fleet fails."""

    name: str
    source: str
    fleet_nodes: int
    """Nodes of the published fleet: time between failures is theirs, the simulated machines stand for them."""
    failures_per_1000_node_days_x10: int
    causes: dict[str, int]
    """Published cause -> count."""
    lemon_pct: int
    """Share of nodes that fail `lemon_factor` times as often."""
    lemon_factor: int
    shock_pct: int
    """Share of incidents that take a whole rack."""
    outage_pct: int
    """Share of incidents that are storage outages."""


LOOKS_LIKE: dict[str, str] = {
    "faulty GPU": "device",
    "HBM3 memory": "device",
    "GPU SRAM": "device",
    "GPU system processor": "loss",
    "software bug": "crash",
    "dependency": "bug",
    "network switch or cable": "echoes",
    "NIC": "loss",
    "NCCL watchdog": "hang",
    "host maintenance": "maintenance",
    "silent data corruption": "sdc",
    "thermal": "straggler",
    "SSD": "stall",
    "power supply": "loss",
    "chassis": "loss",
    "IO expansion board": "loss",
    "CPU": "crash",
    "system memory": "crash",
    "loss spike": "divergence",
}

LLAMA3 = Profile(
    "llama3",
    "Llama 3 (arXiv:2407.21783) table 5: 419 unexpected interruptions, 54 days, 2,048 nodes",
    2_048,
    38,
    {
        "faulty GPU": 148,
        "HBM3 memory": 72,
        "software bug": 54,
        "network switch or cable": 35,
        "host maintenance": 32,
        "GPU SRAM": 19,
        "GPU system processor": 17,
        "NIC": 7,
        "NCCL watchdog": 7,
        "silent data corruption": 6,
        "thermal": 6,
        "SSD": 3,
        "power supply": 3,
        "chassis": 2,
        "IO expansion board": 2,
        "dependency": 2,
        "CPU": 2,
        "system memory": 2,
    },
    lemon_pct=0,
    lemon_factor=1,
    shock_pct=1,
    outage_pct=1,
)

FT_HSDP = Profile(
    "ft-hsdp",
    "FT-HSDP: 678 interruptions, 37 of them silent corruption from only 7 hosts; the rest spread as in Llama 3 table 5",
    2_048,
    65,
    {
        "faulty GPU": 250,
        "HBM3 memory": 120,
        "software bug": 90,
        "network switch or cable": 60,
        "host maintenance": 50,
        "GPU system processor": 40,
        "NCCL watchdog": 25,
        "silent data corruption": 37,
        "loss spike": 6,
    },
    lemon_pct=6,
    lemon_factor=35,
    shock_pct=1,
    outage_pct=1,
)

RSC1 = Profile(
    "rsc1",
    "RSC-1 (arXiv:2410.21680): 6.5 failures per 1,000 node-days, lemon nodes; shares by its attribution table",
    1_024,
    65,
    {
        "faulty GPU": 120,
        "system memory": 60,
        "network switch or cable": 110,
        "NIC": 60,
        "SSD": 70,
        "power supply": 20,
        "software bug": 80,
        "NCCL watchdog": 60,
        "thermal": 30,
    },
    lemon_pct=2,
    lemon_factor=50,
    shock_pct=3,
    outage_pct=4,
)

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (LLAMA3, FT_HSDP, RSC1)}
"""Profile by name: what `run_campaign` takes."""
