"""A group of one: what a run without workers is."""

from gpt2.parallel.group import Group


class One(Group):
    """Whatever is given to everyone comes back."""

    def exchange(self, payload: bytes) -> list[bytes]:
        return [payload]
