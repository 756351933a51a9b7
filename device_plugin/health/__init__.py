"""From fault codes to the health of each chip. Pure state and rules: no input or output."""
