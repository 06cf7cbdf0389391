"""Other people's packages on LangGraph's saver, store and cache, and on ours: `python -m bench neighbours`."""
