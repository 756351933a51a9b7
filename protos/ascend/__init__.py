"""APIs of this project."""
