"""APIs of Kubernetes."""
