"""How each family of servers is made to emit the recorded tokens."""
