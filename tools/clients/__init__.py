"""The table of clients: what a first user asks with each of them, asked of a running server."""
