"""No forcing: for a server that already answers with the recorded tokens. They are verified all the same."""

from engines.forcing.simple import SimpleForcing


class NoForcing(SimpleForcing):
    """Sends nothing more; a server that decodes freely fails its first turn."""

    name = "none"
