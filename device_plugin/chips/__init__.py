"""Reads the chips and judges their health."""
