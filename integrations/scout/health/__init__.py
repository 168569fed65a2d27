"""Health of the machine below the ranks: sources observe, `watch` publishes what is new.

A source is a class of `source.Source`, found by the entry point group `lmr.health_sources`; the built-in ones are
found the same way they would be if somebody else had written them.
"""
