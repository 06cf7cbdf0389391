"""Checkpoints on one server: operations, and the savers that run them."""
