"""Names, durations, limits and arguments, for every part of the package. These modules import only one another."""
