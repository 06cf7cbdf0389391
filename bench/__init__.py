"""The benchmark: `python -m bench`. See bench/README.md."""

import os

os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"
