"""A proxy that records what an agent and its model server say to each other (``prepare capture``)."""
