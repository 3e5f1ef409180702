"""Experts on the CPU: kernels in C++, a pool of pinned threads that stays, and its work inside decode steps."""
