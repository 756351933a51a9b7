"""Decisions on single pods: what they request, where they are placed, and which pods they preempt."""
