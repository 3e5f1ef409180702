"""What each placement of experts would do on recorded routes, without an engine (``analyse placement``)."""
