"""A schedule: block sizes named by the user's own loop variables, and back end options; never what is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

OPTIONS = frozenset({"num_stages", "num_warps"})
"""Names that are options of a back end and not loop variables."""


class Config:
    """``Config(tile_m=64, tile_n=32, num_warps=4)``: immutable, hashable, pasteable.

    Args:
        settings: A block size for each loop variable named, and options. Other axes get the default schedule's.

    Raises:
        ValueError: A setting is not a positive integer.
    """

    __slots__ = ("_settings",)

    def __init__(self, **settings: int) -> None:
        for name, value in settings.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Config: {name}={value!r} is not a positive integer; write {name}=64, say")
        self._settings = MappingProxyType(dict(sorted(settings.items())))

    @property
    def blocks(self) -> Mapping[str, int]:
        """Block size by axis name."""
        return {name: value for name, value in self._settings.items() if name not in OPTIONS}

    @property
    def options(self) -> Mapping[str, int]:
        """Back end options by name."""
        return {name: value for name, value in self._settings.items() if name in OPTIONS}

    def over(self, default: Config) -> Config:
        """These settings, and those of `default` that are not set here."""
        return Config(**{**default._settings, **self._settings})

    def to_json(self) -> str:
        """The settings as a JSON object."""
        return json.dumps(dict(self._settings))

    @classmethod
    def from_json(cls, text: str) -> Config:
        """The inverse of :meth:`to_json`."""
        return cls(**json.loads(text))

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value}' for name, value in self._settings.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(tuple(self._settings.items()))
