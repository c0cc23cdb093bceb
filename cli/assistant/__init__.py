# pyright: strict
"""The MCP server for AI assistants: `opreplay mcp`."""
