"""The decision on one pod: what it requests, where it is placed, which pods make room for it."""
