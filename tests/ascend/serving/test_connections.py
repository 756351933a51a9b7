"""Connections: how many, how long, and which of them give way."""
