"""Records of decisions in logs, metrics and Events; and the audit of the state."""
