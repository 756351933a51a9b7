"""Thousands of restarts and races on the sandbox: `python -m tests.soak [--seed N] [--restarts N] [--races N]`."""
