"""The words of a strategy file, whichever form it has, and how far they are read."""

from __future__ import annotations

import re

import attrs

from topoplan import TopoplanError

__all__ = ["Tokens"]

_INTEGER = re.compile(r"-?[0-9]{1,9}")


@attrs.define
class Tokens:
    """The words of a file and how far it is read.

    Attributes:
        name: of the file, for messages.
        words: in the order of FlexFlow's text form.
        places: where each word stands, such as ``line 3``.
        position: of the next word.
    """

    name: str
    words: list[str]
    places: list[str]
    position: int = 0

    @classmethod
    def of_text(cls, data: bytes, name: str) -> Tokens:
        """Split the text form.

        Raises:
            TopoplanError: the bytes are no text.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise TopoplanError(f"{name}: is not text (expected a FlexFlow strategy file)") from None
        rows = [(word, f"line {line}") for line, row in enumerate(text.split("\n"), 1) for word in row.split()]
        return cls(name, [word for word, _ in rows], [place for _, place in rows])

    def where(self, step: int = 0) -> str:
        """File and place of the next word, or of the last one."""
        index = min(self.position + step, len(self.words) - 1)
        return f"{self.name}: {self.places[index]}" if self.words else self.name

    def take(self, description: str) -> str:
        """Read a word."""
        if self.position >= len(self.words):
            raise TopoplanError(f"{self.where()}: the file ends before the {description}")
        self.position += 1
        return self.words[self.position - 1]

    def integer(self, description: str, low: int, high: int) -> int:
        """Read an integer from ``low`` to ``high``."""
        word = self.take(description)
        if not _INTEGER.fullmatch(word) or not low <= int(word) <= high:
            expected = str(low) if low == high else f"{low} to {high}"
            raise TopoplanError(f"{self.where(-1)}: {word!r:.40} as {description} (expected {expected})")
        return int(word)
