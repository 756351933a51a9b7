"""Kueue's admission check: whether the pods of a workload could start, asked before they exist."""
