"""What emitted programs call while they run: threads, kernels, memory used again, remembered measurements."""
