"""Errors of forge: what to catch, and which builtin each also is.

ForgeError
├── ModelFormatError (ValueError)     a model file or directory that cannot be read as what it says it is
├── TokenizerError (ValueError)       text, or a chat template, that a tokenizer cannot turn into tokens
├── RequestError (ValueError)         a generation request that the engine cannot serve
├── ProviderError (LookupError)       an entry point that is unknown, provided twice, or broken
└── MissingExtraError (ImportError)   an optional dependency that is not installed
"""

__all__ = [
    "ForgeError",
    "MissingExtraError",
    "ModelFormatError",
    "ProviderError",
    "RequestError",
    "TokenizerError",
]


class ForgeError(Exception):
    """Root of all errors that forge raises on purpose."""


class ModelFormatError(ForgeError, ValueError):
    """A model file or directory cannot be read; the message names the file and what is wrong with it."""


class TokenizerError(ForgeError, ValueError):
    """Text cannot be tokenized, or a chat is asked of a tokenizer that has no template."""


class RequestError(ForgeError, ValueError):
    """A generation request is out of range; nothing of the batch it came with was accepted."""


class ProviderError(ForgeError, LookupError):
    """An entry point is unknown, provided by two distributions, or does not keep its contract."""


class MissingExtraError(ForgeError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""
