"""Whether this allocator is the one that binds: lease, fence, and the Service's endpoint."""
