"""Fixtures that every room's tests share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not; only test support lives here

pytest_plugins = ("postgres_server",)
