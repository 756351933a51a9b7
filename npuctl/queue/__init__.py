"""The command ``npuctl queue``: what waits, in the order in which it is decided on."""
