"""What a run must show before its numbers mean anything: each check is one function with its threshold and advice."""
