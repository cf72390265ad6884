"""What scenarios share: Finch's side on raw sockets, and a real gateway process."""
