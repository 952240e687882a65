"""Labelled texts and pairs."""
