"""Values and their bytes: LangGraph's format, faster, and safe for values that change meanwhile."""
