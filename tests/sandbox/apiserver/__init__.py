"""Tests of the in-memory API server."""
