"""What is true on this node now: its pods, which of them was handed which chips, and values tasks can wait on."""
