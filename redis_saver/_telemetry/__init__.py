"""Counts of savers, stores and caches as OpenTelemetry's metrics and spans, and as log lines.

Nothing here is imported before it is needed.
"""
