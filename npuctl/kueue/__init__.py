"""The command ``npuctl kueue``: Kueue's objects for the nodes of a cluster."""
