"""Flushing: the flusher brings to cold what only hot has."""
