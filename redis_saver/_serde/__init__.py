"""Values and their bytes, faster than LangGraph makes them, and safe for values that change meanwhile."""
