"""The command line; each command imports what it needs when it runs, so that help is instant."""

from forge.cli.main import main

__all__ = ["main"]
