"""Errors of forge: what to catch, and which builtin each also is.

ForgeError
├── ModelFormatError (ValueError)     a model file or directory that cannot be read as what it says it is
├── TokenizerError (ValueError)       text, or a chat template, that a tokenizer cannot turn into tokens
├── RequestError (ValueError)         a generation request that the engine cannot serve
├── ConfigError (ValueError)          a configuration with an unknown key, or a value that does not fit
├── EpisodeError (ValueError)         an episode whose parts contradict each other
├── StalenessError (RuntimeError)     more groups, or older ones, than the staleness bound allows
├── LaunchError (RuntimeError)         an actor that cannot be launched, or a call that its mesh cannot take
├── SyncError (RuntimeError)          weights that did not arrive as they were sent
│   └── ParityError (RuntimeError)    trainer and generator that do not compute the same log-probabilities
├── ProviderError (LookupError)       an entry point that is unknown, provided twice, or broken
└── MissingExtraError (ImportError)   an optional dependency that is not installed
"""

__all__ = [
    "ConfigError",
    "EpisodeError",
    "ForgeError",
    "LaunchError",
    "MissingExtraError",
    "ModelFormatError",
    "ParityError",
    "ProviderError",
    "RequestError",
    "StalenessError",
    "SyncError",
    "TokenizerError",
]


class ForgeError(Exception):
    """Root of all errors that forge raises on purpose; what a leaf declares as attributes are the facts behind it."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.__dict__.update(facts)


class ModelFormatError(ForgeError, ValueError):
    """A model file or directory cannot be read; the message names the file and what is wrong with it."""


class TokenizerError(ForgeError, ValueError):
    """Text cannot be tokenized, or a chat is asked of a tokenizer that has no template."""


class RequestError(ForgeError, ValueError):
    """A generation request is out of range; nothing of the batch it came with was accepted."""


class ConfigError(ForgeError, ValueError):
    """A configuration cannot be used; `key` is the dotted name of what is wrong."""

    key: str


class EpisodeError(ForgeError, ValueError):
    """An environment returned an episode from which no sample can be made."""


class StalenessError(ForgeError, RuntimeError):
    """The buffer was used against its staleness bound; `bound` is in policy versions."""

    bound: int


class LaunchError(ForgeError, RuntimeError):
    """The in-process launcher cannot launch a spec, or its mesh cannot take a call."""


class SyncError(ForgeError, RuntimeError):
    """A generator does not hold the weights that the trainer sent; `rank` is the generator's, `version` the sync's."""

    rank: int
    version: int


class ParityError(SyncError):
    """With equal weights, log-probabilities differ by `difference`, more than `tolerance`."""

    difference: float
    tolerance: float


class ProviderError(ForgeError, LookupError):
    """An entry point is unknown, provided by two distributions, or does not keep its contract."""


class MissingExtraError(ForgeError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""
