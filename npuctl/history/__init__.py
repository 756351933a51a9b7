"""``npuctl history``: why jobs waited and where they ran, as recorded by ``npuctl web``."""
