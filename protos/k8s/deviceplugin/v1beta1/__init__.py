"""Version v1beta1."""
