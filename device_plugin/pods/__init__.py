"""Gives pods their chips: matches admission calls with pods, answers them, and records the result on the pod."""
