"""The error tree. A class's docstring is its message; attributes fill it in.

DraftmillError
├── SettingsError        a setting, flag or plan that cannot be used
├── NameRefused          a name that may not become a path, queue or SQL value
├── PromptRefused        one input row, with file, line and cause
├── ProfileError         a model profile whose files or ids do not resolve
├── StoreError           the database refused or is away
│   ├── StoreAway        ... and it is worth trying again
│   └── RowRefused       ... for what a row holds: every other row may pass
├── BrokerAway           Redis refused or is away; PostgreSQL holds the truth, so try again later
├── FingerprintDiffers   new settings for rows that were made with others
├── ServiceError         an embedded service did not start or died
└── ExportRefused        rows that no trainer should see
"""

from typing import Any


class DraftmillError(Exception):
    """Something went wrong in draftmill."""

    remedy: str = ""

    def __init__(self, message: str | None = None, **details: Any) -> None:
        self.details = details
        text = message if message is not None else (self.__class__.__doc__ or "").strip().format(**details)
        super().__init__(text)


class SettingsError(DraftmillError):
    """A setting cannot be used: {cause}"""


class NameRefused(DraftmillError):
    """The name {name!r} is refused: {cause}"""


class PromptRefused(DraftmillError):
    """{file}:{line}: {cause}"""


class ProfileError(DraftmillError):
    """The profile {profile!r} cannot be used: {cause}"""


class StoreError(DraftmillError):
    """The database refused a statement: {cause}"""


class StoreAway(StoreError):
    """The database cannot be reached: {cause}"""


class RowRefused(StoreError):
    """The database refused a value: {cause}"""


class BrokerAway(DraftmillError):
    """Redis cannot be used: {cause}"""


class FingerprintDiffers(DraftmillError):
    """Dataset {dataset!r} holds rows made with other settings; these differ: {names}"""


class ServiceError(DraftmillError):
    """The service {service} {cause}"""


class ExportRefused(DraftmillError):
    """The export is refused: {cause}"""
