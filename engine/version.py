"""The engine's version: part of every plan, because a rule change may change a decision."""

ENGINE_VERSION = "0.1.0"
"""The rules in use; every plan names them, because a change of rules may change a decision."""
