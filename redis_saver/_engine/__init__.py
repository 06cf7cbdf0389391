"""Requests, scripts, and the drivers that carry requests and replies."""
