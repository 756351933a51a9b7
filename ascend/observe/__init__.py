"""What every daemon shows of itself: logs, metrics, probes."""
