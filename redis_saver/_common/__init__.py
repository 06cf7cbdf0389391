"""What every room may import: names, durations, limits, and what callers pass. These modules import only one another."""
