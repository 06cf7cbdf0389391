"""What is stored of a checkpoint: frames, headers, values and their parts, and what this process remembers of them."""
