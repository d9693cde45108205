"""`harmonium bench`: how quickly a server streams, at one stream and at many."""
