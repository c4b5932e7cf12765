"""What a tenant may use: the contract that its ResourceConstraints come to. Pure."""
