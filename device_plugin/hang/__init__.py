"""Finds chips whose processes run and do nothing: a training job that hangs. Off by default."""
