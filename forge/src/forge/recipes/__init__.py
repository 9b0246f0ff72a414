"""Recipes: the loops that a newcomer reads."""
