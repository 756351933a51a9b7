"""Clients of the kubelet: its pod list and its pod-resources API."""
