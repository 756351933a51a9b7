"""The rules for nodes, requests and jobs: pure functions over values, no I/O, no clock, no await."""
