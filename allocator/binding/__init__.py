"""Bindings: ours, and those that other schedulers post."""
