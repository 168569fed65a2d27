"""The engine's version: part of every plan, because a rule change may change a decision."""

ENGINE_VERSION = "0.1.0"
