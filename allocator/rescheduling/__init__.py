"""Deletes pods whose chip or node has failed, so that their controllers create them anew on healthy ones."""
