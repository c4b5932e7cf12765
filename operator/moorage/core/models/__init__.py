"""What models are asked and answer, as providers speak it: protocols, usage, prices. Pure."""
