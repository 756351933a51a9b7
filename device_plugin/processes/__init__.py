"""Finds processes on chips that nobody was given: a container that took chips by its environment, or one by hand."""
