"""Where the blocks of a job are placed, as pure functions of what the SuperPods have left."""
