"""The shells around the engine: torchrun, training state, detectors, frameworks, the `lmr` command."""
