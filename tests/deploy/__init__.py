"""Tests of `deploy/` with helm, a real API server, a real kube-scheduler, and the rights that the chart grants."""
