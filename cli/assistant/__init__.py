# pyright: strict
"""The server that an assistant's program talks to: `opreplay mcp`."""
