"""HTTP within limits."""
