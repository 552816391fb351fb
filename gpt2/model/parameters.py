"""The parameters of a model in flat buffers: their views, initial values, and memory that they lend."""

from collections.abc import Collection

import numpy as np

from gpt2 import autodiff as ad
from gpt2.model.config import GPT2Config
from gpt2.model.description import Description
from gpt2.model.tensors import Stack, Tensors, ranges_of, views

# Matrices (embeddings included) get weight decay; gains and biases do not.
MATRICES = ("wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw")


def unflatten(flat: np.ndarray, of: GPT2Config | Description) -> Tensors:
    """Views of a flat buffer of the trained tensors (by default all): a dict from name to tensor."""
    d = of if isinstance(of, Description) else Description(of)
    return views(flat, d.trained.shapes)


def scratch_range(d: Description) -> tuple[int, int]:
    """The longest range (start, stop) of the gradients without any of the head's.

    They are written after the head's backward, when the logits are no longer needed, so the logits may use
    this memory. At 124M, B=4, T=256 they take 196 MiB, of 2940 for training.
    """
    head = set(d.calls["head"].tensors)
    ranges = [span for name, span in ranges_of(d.trained.shapes).items() if name in head]
    edges = [0, *(edge for span in ranges for edge in span), d.trained.count]
    return max(zip(edges[::2], edges[1::2]), key=lambda span: span[1] - span[0])


PIECE = 256 * 1024  # entries of a tensor that share a stream of random numbers, and stay in cache


def initialise(
    params: Tensors, of: GPT2Config | Description, seed: int, names: Collection[str] | None = None
) -> None:
    """Fill params as GPT-2 was: matrices normal with deviation 0.02, gains 1, biases 0; others as declared.

    Each block adds two branches to the residual stream. Their projections start smaller by sqrt(2L), so that
    the stream's variance does not grow with depth (Radford et al. 2019, section 2.3).
    Every PIECE entries have their own stream of random numbers, determined by seed, tensor and piece: any
    number of threads gives the same model. Numbers are drawn in float32, so both dtypes give the same model.
    names: the tensors to fill; None for all.
    """
    d = of if isinstance(of, Description) else Description(of)
    jobs = []  # (stream, entries, deviation)
    stacks = []  # (Stack, the array drawn for it)
    for number, (name, tensor) in enumerate(params.items()):
        if names is not None and name not in names:
            continue
        deviation, value = d.start(name)
        if deviation is None:
            tensor[...] = np.broadcast_to(value, tensor.shape)
            continue
        if isinstance(tensor, Stack):
            stacks.append((tensor, np.empty(tensor.shape, tensor.dtype)))
            tensor = stacks[-1][1]
        if not tensor.flags.c_contiguous:
            raise ValueError(f"initialise: {name} is not contiguous in memory")
        entries = tensor.reshape(-1)
        for k in range(0, entries.size, PIECE):
            jobs.append(((number, k // PIECE), entries[k : k + PIECE], deviation))
    todo = iter(jobs)  # next() on it is atomic, so threads can share it

    def job(thread):
        scratch = np.empty(PIECE, np.float32)
        for stream, entries, deviation in todo:
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=stream)))
            numbers = scratch[: entries.size]
            rng.standard_normal(out=numbers, dtype=np.float32)
            np.multiply(numbers, np.float32(deviation), out=entries)

    ad.run_on_threads(job)
    for stack, array in stacks:
        stack[...] = array
