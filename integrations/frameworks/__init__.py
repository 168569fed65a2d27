"""Adapters: one for each training framework, attached without a change to the training script."""
