"""The command ``npuctl defragment``: which pods to delete so that rings or servers become free."""
