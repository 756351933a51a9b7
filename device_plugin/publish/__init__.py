"""What this node publishes about its chips: the ConfigMap, and annotations and labels of its Node object."""
