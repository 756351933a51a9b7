"""The command ``npuctl whatif``: what would run and wait after changes, which are not made."""
