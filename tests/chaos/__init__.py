"""A gateway that is killed at chosen points, again and again, and what must hold afterwards."""
