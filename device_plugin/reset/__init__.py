"""Hot reset: chips whose faults end with a reset are reset while nobody uses them (docs/hot-reset.md)."""
