"""The corpus of a text file that the user names."""

from pathlib import Path

from gpt2.errors import UserError


def read(path: str | Path) -> str:
    """The text of the UTF-8 file at `path`; a byte-order mark is dropped, line ends stay as they are.

    Raises UserError for a file that is missing, empty, or not text.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise UserError(f"--data {path}: this is a folder, expected a text file") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        if isinstance(error, PermissionError) and path.is_dir():  # what Windows says of a folder
            raise UserError(f"--data {path}: this is a folder, expected a text file") from None
        raise UserError(f"--data {path}: {getattr(error, 'strerror', None) or error}") from None
    if not content.strip():
        raise UserError(f"--data {path}: the file is empty ({len(content)} bytes), expected text")
    if b"\0" in content:
        raise UserError(
            f"--data {path}: a binary file (a zero byte at {content.index(0)}), expected UTF-8 text"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"--data {path}: not UTF-8 text (byte {error.start} is 0x{content[error.start]:02x});"
            " convert it, say with: iconv -f latin1 -t utf8"
        ) from None
