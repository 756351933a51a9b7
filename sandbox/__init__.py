"""A whole cluster in one process: API server, kubelet, scheduler loop and simulated NPUs."""
