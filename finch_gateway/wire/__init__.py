"""What Finch's words mean: pure values and rules, no input or output."""
