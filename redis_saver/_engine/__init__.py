"""What operations are made of: requests, the scripts, and the drivers that carry requests and replies."""
