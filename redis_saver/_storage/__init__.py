"""What is stored of a checkpoint: frames, headers, values and their chunks, and what this process remembers of them."""
