"""Runs compiled kernels in this process."""
