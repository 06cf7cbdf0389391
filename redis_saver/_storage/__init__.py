"""Stored checkpoints: frames, headers, values and their chunks. Also the cache of this process for them."""
