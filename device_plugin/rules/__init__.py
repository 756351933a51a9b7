"""The values of the node (chips, pods) and the rules of hand-over and report: pure functions over these values."""
