"""Moving threads between two endpoints: savers, or files."""
