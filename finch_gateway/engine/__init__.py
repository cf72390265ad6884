"""Decides what happens, and in which order."""
