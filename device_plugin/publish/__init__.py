"""What this node publishes about its chips: its ConfigMap, and annotations and labels of its Node."""
