"""Tests of the sandbox itself."""
