"""Collective algorithms as generators over batches of messages; importing this package imports no torch."""
