"""Values and their bytes: LangGraph's format, encoded and decoded faster, and safe for values that change meanwhile."""
