"""Reinforcement learning for language models where only the algorithm is yours."""

__version__ = "0.1.0"
