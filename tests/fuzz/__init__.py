"""What strangers write, fuzzed: tenants' pods, nodes' reports, callers' bodies, files, the driver's answers."""
