"""The command `clients`: how foreign clients are pointed at this server."""
