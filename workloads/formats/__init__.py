"""One module a recorded format, each giving `Conversation`s."""
