"""The device plugin's service for the kubelet: one instance per node, registered, with ListAndWatch and Allocate."""
