"""A small server over the C API of a prebuilt libllama."""
