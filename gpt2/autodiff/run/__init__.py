"""Serves emitted programs while they run: threads, kernels, memory used again, remembered measurements."""
