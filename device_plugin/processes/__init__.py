"""Finds processes on chips without allocation: of containers that choose chips by environment, or started by hand."""
