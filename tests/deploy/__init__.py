"""What `deploy/` says is tried: with helm, a real API server, a real kube-scheduler, and the rights the chart gives."""
