"""The driver of real chips, against a library in C that answers what a file says."""
