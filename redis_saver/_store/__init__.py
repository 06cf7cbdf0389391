"""LangGraph's long-term store on one server."""
