"""The informers that feed the state from the API server."""
