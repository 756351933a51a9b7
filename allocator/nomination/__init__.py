"""Decides ahead of the scheduler: nominates nodes for pending pods, and lifts the gates of pods that have a place."""
