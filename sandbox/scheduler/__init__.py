"""A scheduler in this process that calls its extender as kube-scheduler 1.34 does.

See docs/spec/kube-api.md#scheduler-extender.
"""

from sandbox.scheduler.scheduler import Scheduler

__all__ = ["Scheduler"]
