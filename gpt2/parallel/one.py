"""A group of one, for a run without workers."""

from gpt2.parallel.group import Group


class One(Group):
    """The group of one worker."""

    def exchange(self, payload: bytes) -> list[bytes]:
        return [payload]
