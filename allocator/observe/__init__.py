"""What is recorded of decisions: log lines, metrics, Events; and the audit of the state."""
