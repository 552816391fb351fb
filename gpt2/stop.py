"""Stop strings in a text that arrives in pieces."""


class Stop:
    """Text up to the first of some strings, given out as early as it is certain not to belong to one."""

    def __init__(self, strings):
        self.strings = [string for string in strings if string]
        self.held = ""  # the end of the text so far, which may be the beginning of a string
        self.found = False

    def feed(self, text):
        """What can be shown once `text` has come; nothing more after a string was found."""
        if self.found:
            return ""
        self.held += text
        places = [place for string in self.strings if (place := self.held.find(string)) >= 0]
        if places:
            self.found = True
            return self._give(min(places))
        longest = max((len(string) - 1 for string in self.strings), default=0)
        for size in range(min(longest, len(self.held)), 0, -1):
            if any(string.startswith(self.held[-size:]) for string in self.strings):
                return self._give(len(self.held) - size)
        return self._give(len(self.held))

    def close(self):
        """What is left once no more text comes."""
        return "" if self.found else self._give(len(self.held))

    def _give(self, count):
        shown, self.held = self.held[:count], self.held[count:]
        return shown
