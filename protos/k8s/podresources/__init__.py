"""The kubelet's pod-resources API."""
