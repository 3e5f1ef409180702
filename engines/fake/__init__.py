"""An engine with known latencies, each legal shape of stream and each fault, as a process of its own."""
