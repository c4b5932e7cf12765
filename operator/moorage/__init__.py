"""Durable AI agent runs on Kubernetes."""

__version__ = "0.1.0"
