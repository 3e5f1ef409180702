"""Engines in containers: what is asked of Docker, who runs it, and what its refusals mean."""
