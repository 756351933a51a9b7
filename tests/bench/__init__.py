"""Measurements: `python -m tests.bench [name …] [--quick] [--json FILE]`; never part of an assertion."""
