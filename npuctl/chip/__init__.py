"""The commands ``npuctl chip cordon`` and ``npuctl chip uncordon``: chips out of use, and back."""
