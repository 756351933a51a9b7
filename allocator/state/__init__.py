"""The cluster as seen and as decided: nodes, holders of chips, reservations."""
