"""What a person sees: the playground at `/`, from files in the package."""
