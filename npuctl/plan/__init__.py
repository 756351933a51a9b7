"""The command ``npuctl plan``: what the allocator would do with pods, without a cluster."""
