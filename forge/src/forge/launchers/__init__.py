"""Launchers that come with forge."""
