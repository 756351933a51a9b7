"""Leadership among several allocators: the lease, the fence, and the endpoint of the Service."""
