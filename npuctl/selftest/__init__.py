"""The verb ``npuctl selftest``: what a machine with real chips shows, as a report that can be published."""
