"""Flushing: bringing to cold what only hot has."""
