"""What can go wrong before the first request."""


class SetupError(Exception):
    """The model can't be served; the message says what to change."""
