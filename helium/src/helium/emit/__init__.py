"""Emitters: from the tile IR to code."""
