"""How fast a profile should be on a GPU: bytes and operations over what an engine achieves."""
