"""What a kernel is put through: the oracle, relations, hazards and gradients."""
