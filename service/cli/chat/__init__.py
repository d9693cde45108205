"""`harmonium chat`: a conversation in the terminal, with this or any OpenAI-compatible server."""
