"""The registry of a program's metrics."""

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics


def new_registry() -> CollectorRegistry:
    """Return a registry with the metrics of the process: its memory, CPU time and file descriptors (``process_…``).

    When a counter began (``…_created``) is not served: it doubles the page, and Prometheus does not use it.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry
