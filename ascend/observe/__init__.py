"""What every daemon exposes: logs, metrics, probes."""
