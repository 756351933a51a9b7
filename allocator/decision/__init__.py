"""Decisions on single pods: their requests, their nodes, and the pods to preempt."""
