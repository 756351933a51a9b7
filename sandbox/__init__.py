"""A whole cluster in one process: API server, kubelets, a scheduler loop, simulated chips. No root, no containers.

The parts keep the contracts of the real ones (the scenario suite in ``tests/e2e`` runs on both), so our two programs
run on it unchanged. It serves the demo, fast tests and experiments.
"""
