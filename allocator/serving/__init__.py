"""The front ends: extender and webhooks over HTTP, ``ascend.allocator.v1`` over gRPC."""
