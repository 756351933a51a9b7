"""The command ``npuctl topo``: nodes, the links between their chips, and the pods that hold them."""
