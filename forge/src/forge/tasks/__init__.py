"""Tasks that come with forge, each an environment."""

from forge.tasks.sort import SortTask

__all__ = ["SortTask"]
