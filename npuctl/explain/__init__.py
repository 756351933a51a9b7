"""The command ``npuctl explain``: why a pod waits, and what would help."""
