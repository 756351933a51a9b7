"""The allocator's API."""
