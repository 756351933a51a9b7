"""The command ``npuctl queue``: the waiting jobs and pods in the order of the decisions."""
