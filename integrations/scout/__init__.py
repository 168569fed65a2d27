"""SCOUT: detectors observe and publish facts; the engine decides."""
