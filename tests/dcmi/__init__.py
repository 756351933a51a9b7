"""The driver of real chips, with a fake C library that answers from a file."""
