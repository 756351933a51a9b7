"""A scheduler in this process that calls its extender as kube-scheduler 1.34 does (spec/kubernetes.md §3)."""

from sandbox.scheduler.scheduler import Scheduler

__all__ = ["Scheduler"]
