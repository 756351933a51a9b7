"""Access to the API server: credentials, client, reflector, typed objects, leases and Events."""
