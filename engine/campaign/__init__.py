"""Campaigns: failures drawn from published statistics, told as detectors tell them, decided by the engine, and scored.

    profiles.py   how fleets fail, with sources
    generator.py  draws a failure, knows the truth, tells facts with delay, duplicates, reordering, loss, false alarms
    run.py        the engine decides, the fleet reacts
    scorer.py     compares what was done with what was true; imports no rule

Outside the pure core: this package alone may use `random`, seeded explicitly. The core never imports it.
"""

from lmr.engine.campaign.profiles import PROFILES
from lmr.engine.campaign.run import run_campaign
from lmr.engine.campaign.scorer import Score

__all__ = ["PROFILES", "Score", "run_campaign"]
