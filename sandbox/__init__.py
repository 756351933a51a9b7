"""A Kubernetes cluster in one process: API server, scheduler, kubelets, simulated chips. No root, no containers.

Our two programs run on it unchanged, because it behaves as a real cluster does; the scenarios in ``tests/e2e`` run on
both. It serves the demo, fast tests and experiments.
"""
