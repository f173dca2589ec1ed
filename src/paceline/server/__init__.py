"""OpenAI-compatible HTTP API over one engine. Importing the package itself costs nothing."""
