"""What can go wrong with the real cluster, as one exception."""


class ClusterError(Exception):
    """The real cluster could not be built, started or used; the text says which part, and shows the end of its log."""
