"""Bytes from the network become one trusted value; every answer leaves signed."""
