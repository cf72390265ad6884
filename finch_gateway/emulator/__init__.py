"""Finch's side of the wire, for trying a provider; it shares no signing code with the gateway."""
