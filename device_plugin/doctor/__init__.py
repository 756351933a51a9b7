"""What is wrong with this node, in words: checks of everything the plugin stands on.

Each check looks at one thing, has a deadline, and tells findings: a sentence each, and what to do about it. Nothing is
changed by looking.
"""

from device_plugin.doctor.examine import examine
from device_plugin.doctor.finding import Check, Finding

__all__ = ["Check", "Finding", "examine"]
