"""Chat completions: messages to a prompt through the model's own template, and its output back to messages."""
