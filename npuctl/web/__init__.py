"""``npuctl web``: a page that shows the chips of a cluster, what waits for them, and why."""
