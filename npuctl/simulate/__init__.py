"""The command ``npuctl simulate``: the allocator's engine on a virtual clock."""
