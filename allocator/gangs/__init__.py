"""Gangs: the pods of a job that are placed together or not at all."""
