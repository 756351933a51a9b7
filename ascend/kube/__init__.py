"""Access to the API server: configuration, client, reflector, slim typed objects, patches and events."""
