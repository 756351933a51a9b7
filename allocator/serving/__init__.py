"""How schedulers reach the allocator: the extender over HTTP, ``ascend.allocator.v1`` over gRPC."""
