"""Errors of workers: one that is lost, and a batch that cannot be split evenly."""

from gpt2.errors import UserError


class WorkerError(RuntimeError):
    """A worker died, failed or hung. The message says which and how; the other workers have been ended."""


def check_batch(B: int, size: int, flag: str = "--workers") -> None:
    """Raise UserError unless `size` workers can take equal shares of B sequences.

    With unequal shares all would wait for the largest.
    """
    if size > B:
        raise UserError(
            f"{flag} {size}: a batch has only {B} sequences, so at most {B} workers have "
            f"something to do; take {flag} {B}, or --batch-size {size}"
        )
    if B % size:
        fewer = max(n for n in range(1, size) if B % n == 0)
        below = B // size * size
        raise UserError(
            f"{flag} {size}: a batch of {B} sequences cannot be cut into {size} equal shares; "
            f"take --batch-size {below} or {below + size}, or {flag} {fewer}"
        )
