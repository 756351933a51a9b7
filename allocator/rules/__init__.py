"""What fits where: pure functions over values, no I/O, no clock, no await."""
