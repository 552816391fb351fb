"""Peak memory of a call."""

import tracemalloc


def peak_of(call, times=1):
    """Bytes that Python and NumPy hold at the highest point of so many calls, besides what was there."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(times):
            call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
