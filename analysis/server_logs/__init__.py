"""What an engine's own log says of its requests, without records: ``analyse logs``."""
