"""Measurements: `python -m tests.bench [name …] [--quick] [--json FILE]`; no test asserts a measured value."""
