"""The runtime of emitted programs: threads, kernels, recycled memory, remembered measurements."""
