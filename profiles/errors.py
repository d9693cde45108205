"""The errors of profiles, hardware strings and the model store.

ProfileError
├── InvalidCatalogue      a YAML file of the catalogue is wrong
├── InvalidHardware       a hardware string such as 'h200x8' cannot be read
├── InvalidConstraint     a constraint names a model, profile, tag or length that does not exist
├── NoCompatibleProfile   nothing can run; carries the reason for every profile
└── ModelStoreError       the model's files are missing, incomplete or of another model
    └── DownloadError             they cannot be fetched
        ├── DownloadInterrupted   ... just now; trying again may help
        └── WrongBytes            ... from a source that has another file than it lists
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


class ProfileError(Exception):
    """The root of all errors of this package."""


class InvalidCatalogue(ProfileError):
    """A catalogue file is wrong; the message names the file, the key and the value."""


class InvalidHardware(ProfileError):
    """A hardware string cannot be read; the message lists what is known."""


class InvalidConstraint(ProfileError):
    """A constraint names something the catalogue does not have."""


class NoCompatibleProfile(ProfileError):
    """Nothing can run here; the message starts with the remedy.

    `reasons` maps 'model/name' of every profile to why not.
    """

    def __init__(self, message: str, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class ModelStoreError(ProfileError):
    """The model's files cannot be used; the message names the file and the remedy."""


class DownloadError(ModelStoreError):
    """A model cannot be fetched; the message names the source and the remedy."""


class DownloadInterrupted(DownloadError):
    """The connection or the server failed; what came is kept, and trying again may help.

    `wait_s`: for how long the source asks not to be asked.
    """

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class WrongBytes(DownloadError):
    """What came cannot be the file that was listed; none of it is kept."""


def nearest(value: str, known: Iterable[str]) -> str:
    """Return ' (did you mean ...?)' for a misspelt name, else nothing."""
    matches = get_close_matches(value.lower(), list(known), n=1, cutoff=0.5)
    return f" (did you mean '{matches[0]}'?)" if matches else ""
