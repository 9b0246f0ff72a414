"""The backends of this package; each is found by its entry point, never imported by the communicator."""
