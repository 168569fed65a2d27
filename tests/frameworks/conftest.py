"""Doubles of the node runtime, shared with the tests of the vault."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "gemini" / "doubles"))
