"""The exception of the real cluster."""


class ClusterError(Exception):
    """The real cluster cannot be built, started or used; the text names the component and shows the end of its log."""
