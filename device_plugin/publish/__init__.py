"""The publication of a node's chips: the ConfigMap, and annotations and labels of the Node."""
