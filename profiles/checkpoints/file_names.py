"""Names and sizes of files as a source, a list or an index gives them: checked before any use."""

from __future__ import annotations

from typing import Final

from profiles.checkpoints.packed import PACKED

MAX_FILE_BYTES: Final = 16 << 40  # the largest file of a published model has 50 GB
_MAX_PART_BYTES: Final = 200  # file systems take 255, of which an unfinished file's name needs some
_MAX_NAME_BYTES: Final = 1000


def check_name(name: object) -> str:
    """Return a file's name, relative to its model's folder, if it can only mean a file in there.

    Raises ValueError with the name. Names that this program gives to its own files, which begin
    with a dot, are refused.
    """
    if not isinstance(name, str):
        raise ValueError(f"{shown(name)}, which is not a file name")
    problem = _problem(name)
    if problem:
        raise ValueError(f"{shown(name)}, {problem}")
    return name


def check_size(size: object) -> int:
    """Return a size in bytes if it can be one; raises ValueError."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_FILE_BYTES:
        raise ValueError(f"a size of {shown(size)} bytes")
    return size


def is_own(name: str) -> bool:
    """Whether a name is hidden, or is one that this program gives to its own files.

    Repositories have hidden files, such as .gitattributes; none belongs to a model.
    """
    return name == PACKED or any(part.startswith(".") for part in name.split("/") if part != "..")


def shown(value: object) -> str:
    """A value from elsewhere as a message shows it: in quotes, escaped, cut short."""
    if isinstance(value, int) and value.bit_length() > 100:
        return "a number beyond all sizes"
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"
    text = ascii(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:76]}..."


def _problem(name: str) -> str:
    parts = name.split("/")
    if not name.isprintable() or "\\" in name:
        return "which has characters that no file name needs"
    if name.startswith("/") or ".." in parts:
        return "which is outside the model's folder"
    if "" in parts:
        return "which has an empty part"
    if is_own(name):
        return "which is a name of hidden files and of our own"
    sizes = [len(part.encode()) for part in parts]
    if max(sizes) > _MAX_PART_BYTES or sum(sizes) > _MAX_NAME_BYTES:
        return "which is too long"
    return ""
