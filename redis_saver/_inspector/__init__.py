"""The inspector: pages in the browser that show threads, checkpoints and their values."""
