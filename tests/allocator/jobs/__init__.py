"""Tests of the kinds of jobs."""
