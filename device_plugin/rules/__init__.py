"""The rules of the hand-over and of the report: pure functions over values."""
