"""Checkpoints as they are stored: frames, headers, values and their chunks; and this process's memory of them."""
