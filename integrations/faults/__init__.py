"""Fault campaigns: real faults injected into real trainings."""
