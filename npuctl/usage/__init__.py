"""The command ``npuctl usage``: who holds how many chips."""
