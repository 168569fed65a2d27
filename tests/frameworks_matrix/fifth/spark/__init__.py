"""A framework nobody has heard of, for the walk through docs/adapters.md."""
