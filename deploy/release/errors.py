"""The one error of making and verifying a release."""


class ReleaseError(Exception):
    """A release cannot be made, or is not what it should be; the text names the file or variable, and the remedy."""
