"""The chaos campaign: every kind of fault, by chance, against a real training on this machine."""
