"""What this machine can do: float32 operations a second in a product, and bytes a second in a copy."""

import threading
import time

import numpy as np

COPY_BYTES = 256 << 20  # far larger than any cache


def sgemm_peak(seconds=1.0):
    """Best rate of a product of two square float32 matrices, in operations a second, over a few sizes.

    With the threads that NumPy's BLAS has.
    """
    return max(_product_rate(n, seconds / 3) for n in (512, 1024, 2048))


def _product_rate(n, seconds):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n, n), dtype=np.float32)
    out = np.empty_like(a)
    np.matmul(a, b, out=out)  # the first call starts the threads
    return 2 * n**3 / _fastest(lambda: np.matmul(a, b, out=out), seconds)


def copy_bandwidth(threads, seconds=1.0):
    """Bytes a second of copying an array that no cache holds, read and written counted once each.

    One Python thread for each core; NumPy copies without the interpreter lock.
    """
    source = np.ones(COPY_BYTES // 4, np.float32)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads)))

    def copy():
        workers = [threading.Thread(target=np.copyto, args=(t, s)) for s, t in parts[1:]]
        for worker in workers:
            worker.start()
        np.copyto(parts[0][1], parts[0][0])
        for worker in workers:
            worker.join()

    return 2 * COPY_BYTES / _fastest(copy, seconds)


def _fastest(function, seconds):
    """The shortest of as many calls as fit into the time, at least three."""
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)
