"""The scheduler of the sandbox, seen from an extender and from the API server."""
