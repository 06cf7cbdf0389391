"""What operations are made of: requests, the scripts, and what carries requests and replies to and fro."""
