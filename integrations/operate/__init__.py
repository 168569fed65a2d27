"""The `lmr` command."""
