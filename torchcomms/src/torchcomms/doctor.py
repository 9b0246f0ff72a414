"""What can be said about an installed backend without opening it."""

from __future__ import annotations

from torchcomms.backend import Capabilities
from torchcomms.discovery import find
from torchcomms.errors import CommsError


def examine(name: str) -> str:
    """One line: the backend's name, whether it is usable here, what it does or why not."""
    try:
        capabilities = find(name).capabilities()
    except CommsError as error:
        return f"{name}: broken: {error}"
    if not capabilities.usable:
        return f"{name}: not usable here: {capabilities.reason}"
    return f"{name}: usable: {_facts(capabilities)}"


def _facts(capabilities: Capabilities) -> str:
    dtypes = "every dtype" if capabilities.dtypes is None else f"{len(capabilities.dtypes)} dtypes"
    bound = capabilities.death_bound_ms
    death = "does not notice deaths" if bound is None else f"notices deaths within {bound:g} ms"
    return f"{', '.join(sorted(capabilities.devices))} tensors of {dtypes}; {death}"
