"""Records of decisions in logs, metrics and Events."""
