"""Restarts and races by the thousand on the sandbox: `python -m tests.soak [--seed N] [--restarts N] [--races N]`."""
