"""What every part of the package may import: names, durations, limits, and what callers pass. These modules import only one another."""
