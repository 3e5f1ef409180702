"""What the machine did beside a run, sampled by a process of its own."""
