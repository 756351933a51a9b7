"""The kubelet-facing service: one instance per node, registered with the kubelet, with ListAndWatch and Allocate."""
