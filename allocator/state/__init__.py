"""The state of the cluster: nodes, pods, jobs and the reservations."""
