"""Gives pods their chips: matches admission calls with pods, answers them, and writes the result on the pod."""
