"""What is counted of savers, stores and caches, as OpenTelemetry's metrics and spans, and as lines of the log. Nothing here is imported before it is asked for."""
