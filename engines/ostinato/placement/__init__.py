"""One module per placement policy: who is resident, and what a miss does. Decisions only, no tensors."""
