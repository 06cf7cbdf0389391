"""Stored checkpoints: frames, headers, values and their chunks, and this process's cache of these."""
