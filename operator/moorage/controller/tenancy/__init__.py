"""Tenants at the API server: their contracts as they are watched, and what is rendered from them."""
