"""The driver of real chips, with a fake C library whose answers are in a file."""
