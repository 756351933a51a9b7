"""Bindings of the allocator, and Bindings that other schedulers post."""
