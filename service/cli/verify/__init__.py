"""`harmonium verify`: the engine of this machine beside transformers, on fixed texts."""
