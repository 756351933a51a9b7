"""Bindings: those of the allocator, and those that other schedulers post."""
