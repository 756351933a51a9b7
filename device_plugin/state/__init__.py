"""What is true on this node now: the chips, the pods, and which pod was handed which chips."""
