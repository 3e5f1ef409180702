"""``engines fit``: the largest cache, or the fewest layers on the CPU, with which the longest request completes."""
