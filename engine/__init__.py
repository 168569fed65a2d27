"""The engine room."""

from lmr.engine.version import ENGINE_VERSION as ENGINE_VERSION
