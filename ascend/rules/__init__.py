"""The placement rules of products: which chips of one server a pod takes, and how servers are ordered."""
