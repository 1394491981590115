"""Archipel."""
