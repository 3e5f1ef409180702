"""One module a wire dialect: a forced request to a server's fields, its stream to tokens."""
