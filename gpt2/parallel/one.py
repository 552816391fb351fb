"""A group of one: what a run without workers is."""

from gpt2.parallel.group import Group


class One(Group):
    """The group of one worker: what it gives to everyone comes back to it."""

    def exchange(self, payload: bytes) -> list[bytes]:
        return [payload]
