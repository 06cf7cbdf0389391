"""Serializers of LangGraph's format: faster, and safe for values that change meanwhile."""

from redis_saver._serde.serializer import FastSerializer, StrictSerializer, safe

__all__ = ["FastSerializer", "StrictSerializer", "safe"]
